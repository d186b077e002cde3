#!/usr/bin/env bash
# A running `octavo serve` without any client library: curl.sh [BASE_URL]
set -euo pipefail
url=${1:-http://localhost:8000/v1}

# The whole reply, as one JSON object. Without "model" the served one is meant.
curl --silent --fail-with-body "$url/chat/completions" -H "Content-Type: application/json" -d '{
  "messages": [{"role": "user", "content": "Tell me about the sea."}],
  "max_tokens": 24,
  "temperature": 0
}'
echo

# The same as it is made: server-sent events, the last of them [DONE]. --no-buffer shows each when it comes.
curl --silent --fail-with-body --no-buffer "$url/chat/completions" -H "Content-Type: application/json" -d '{
  "messages": [{"role": "user", "content": "Tell me about the sea."}],
  "max_tokens": 24,
  "temperature": 0,
  "stream": true,
  "stream_options": {"include_usage": true}
}'
