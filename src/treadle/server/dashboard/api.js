// Talks to the server this page came from; leaves to others what to ask and what to show.

const KEY_NAME = "treadle.api-key";

/** A refusal by the server, in its own words; `retryAfter` is how many seconds it asks to wait, if it does. */
export class ApiError extends Error {
  constructor(status, { message, code }, retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code ?? null;
    this.retryAfter = retryAfter;
  }
}

// The key lives as long as the tab; without storage (a browser may forbid it) as long as the page.
let keptKey = "";

export function storedKey() {
  try {
    return sessionStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return keptKey;
  }
}

export function storeKey(key) {
  keptKey = key;
  try {
    if (key) sessionStorage.setItem(KEY_NAME, key);
    else sessionStorage.removeItem(KEY_NAME);
  } catch {
    // kept above
  }
}

async function call(path, init = {}) {
  const key = storedKey();
  const headers = { ...init.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const response = await fetch(path, { ...init, headers, cache: "no-store", credentials: "same-origin" });
  if (response.ok) return response;
  const retryAfter = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  throw new ApiError(response.status, await refusal(response), Number.isNaN(retryAfter) ? null : retryAfter);
}

async function refusal(response) {
  const unknown = { message: `the server answered ${response.status} ${response.statusText}`.trim() };
  try {
    return (await response.json()).error ?? unknown;
  } catch {
    return unknown; // of a proxy in between, for one
  }
}

/** How the server is, with the latest requests of each model. */
export async function fetchStats(numRequests) {
  return (await call(`stats?requests=${numRequests}`)).json();
}

/** Iterates over the chunks of a streamed chat completion. */
export async function* streamChat(body, signal) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error);
    yield chunk;
  }
  throw new Error("The connection ended before the answer did.");
}

/** Iterates over the data of server-sent events, wherever the network cut them. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}
