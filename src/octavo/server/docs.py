"""/docs: one page that shows /openapi.json without anything from the internet."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import HTMLResponse


def router() -> APIRouter:
    routes = APIRouter()

    @routes.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(PAGE)

    return routes


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>octavo</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9em; }
details { border: 1px solid #8884; border-radius: .4rem; padding: .5rem 1rem; margin: .5rem 0; }
summary { cursor: pointer; } summary b { display: inline-block; min-width: 4rem; }
table { border-collapse: collapse; } td { padding: .1rem .8rem .1rem 0; vertical-align: top; }
</style></head><body>
<h1>octavo</h1><p id="about">Loading <a href="openapi.json">openapi.json</a> ...</p><main></main>
<script>
const make = (tag, text) => { const e = document.createElement(tag); if (text) e.textContent = text; return e; };
const kind = s => {
  if (!s) return "";
  if (s.$ref) return s.$ref.split("/").pop();
  if (s.anyOf) return s.anyOf.map(kind).filter(k => k !== "null").join(" | ");
  if (s.type === "array") return "[" + kind(s.items) + "]";
  return s.const !== undefined ? JSON.stringify(s.const) : s.enum ? s.enum.join(" | ") : s.type || "any";
};
fetch("openapi.json").then(r => r.json()).then(doc => {
  document.getElementById("about").textContent = `${doc.info.title} ${doc.info.version}. ${doc.info.description || ""}`;
  for (const [path, methods] of Object.entries(doc.paths)) for (const [method, route] of Object.entries(methods)) {
    const box = make("details"), head = make("summary");
    head.append(make("b", method.toUpperCase()), make("code", path));
    box.append(head, make("p", route.description || route.summary));
    const ref = route.requestBody?.content?.["application/json"]?.schema?.$ref;
    if (ref) {
      const schema = doc.components.schemas[ref.split("/").pop()], table = make("table");
      for (const [name, field] of Object.entries(schema.properties)) {
        const row = make("tr"), cell = make("td");
        cell.append(make("code", name));
        row.append(cell, make("td", kind(field)), make("td", (schema.required || []).includes(name) ? "required" : ""));
        table.append(row);
      }
      box.append(table);
    }
    document.querySelector("main").append(box);
  }
});
</script></body></html>
"""
