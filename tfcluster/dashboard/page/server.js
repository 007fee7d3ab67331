// Requests to the command that serves this page. The token is in the link's fragment, which is not sent to any server.

const parameters = new URLSearchParams(location.hash.slice(1));
if (parameters.has("token")) {
  sessionStorage.setItem("token", parameters.get("token"));
  history.replaceState(null, "", parameters.has("run") ? `#run/${encodeURIComponent(parameters.get("run"))}` : "#overview");
}

async function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem("token") ?? ""}`, ...options.headers };
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (response.ok) return response;
  const failure = await response.json().catch(() => ({ message: response.statusText }));
  throw Object.assign(new Error([failure.message, failure.hint].filter(Boolean).join("\n")), { status: response.status });
}

export async function get(path) {
  return (await request(path)).json();
}

export async function post(path, body) {
  return (await request(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" } })).json();
}

// Read server-sent events until they end. EventSource cannot send the token.
export async function follow(path, signal, take) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const match = /^event: (.*)\ndata: (.*)$/.exec(part);
      if (match) take(match[1], JSON.parse(match[2]));
    }
  }
}
