// OpenAI's client for Node on a running `octavo serve`: node client.mjs [BASE_URL], after npm install.

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const client = new OpenAI({ baseURL: process.argv[2] ?? "http://localhost:8000/v1", apiKey: "EMPTY" });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Is it freezing in Oslo?" }];
const asked = { model, messages, temperature: 0, max_tokens: 32 };

const reply = await client.chat.completions.create(asked);
console.log("chat:", JSON.stringify(reply.choices[0].message.content));

let text = "";
let usage;
const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
console.log("stream:", JSON.stringify(text));
console.log("usage:", usage.prompt_tokens, usage.completion_tokens);

const Weather = z.object({
  city: z.string().max(20),
  sky: z.enum(["clear", "cloudy", "rain", "snow"]),
  degrees: z.number().int().min(-40).max(50),
});
const parsed = await client.chat.completions.parse({
  model,
  messages: [{ role: "user", content: "It rains in Bergen, at 8 degrees." }],
  response_format: zodResponseFormat(Weather, "weather"),
  temperature: 0,
});
console.log("structured:", JSON.stringify(parsed.choices[0].message.parsed));

// The client runs the functions that the model calls, and asks again with the results; a stream here too.
const degrees = { Lima: 19, Oslo: -3, Quito: 15 };
const parameters = {
  type: "object",
  properties: { city: { enum: Object.keys(degrees) } },
  required: ["city"],
  additionalProperties: false,
};
const runner = client.chat.completions
  .runTools(
    {
      model,
      messages,
      temperature: 0,
      max_tokens: 64,
      stream: true,
      tool_choice: { type: "function", function: { name: "temperature" } },
      tools: [
        {
          type: "function",
          function: {
            name: "temperature",
            description: "The temperature in a city.",
            parameters,
            parse: JSON.parse,
            function: ({ city }) => degrees[city],
          },
        },
      ],
    },
    { maxChatCompletions: 2 },
  )
  .on("functionToolCall", (call) => console.log(`tool: ${call.name}(${JSON.parse(call.arguments).city})`))
  .on("functionToolCallResult", (result) => console.log("result:", result));
await runner.done();

const completion = await client.completions.create({ model, prompt: "One, two,", max_tokens: 8, temperature: 0 });
console.log("completion:", JSON.stringify(completion.choices[0].text));
const vectors = await client.embeddings.create({ model, input: ["It is freezing.", "It is warm."] });
console.log("embeddings:", JSON.stringify(vectors.data.map((entry) => entry.embedding.length)));
