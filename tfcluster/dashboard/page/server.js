// Requests to the command that serves this page. The token is in the link's fragment, which is not sent to any server.

const ANSWER_SECONDS = 60;  // until a request is given up
const NOT_MODIFIED = 304;
const NO_ANSWER = "`tfcluster dashboard` does not answer: it has stopped or is busy. This page keeps trying.";

// Take the token out of the link; return whether it had one.
export function takeToken() {
  const parameters = new URLSearchParams(location.hash.slice(1));
  if (!parameters.has("token")) return false;
  sessionStorage.setItem("token", parameters.get("token"));
  const run = parameters.get("run");
  history.replaceState(null, "", run === null ? "#overview" : `#run/${encodeURIComponent(run)}`);
  return true;
}
takeToken();

// Return the response and its JSON. An error has the `status` of the answer, or 0 if there was no answer.
async function request(path, options, headers) {
  const all = { Authorization: `Bearer ${sessionStorage.getItem("token") ?? ""}`, ...headers };
  let response, value;
  try {
    response = await fetch(path, { ...options, headers: all, cache: "no-store" });
    value = response.status === NOT_MODIFIED ? null : await response.json();
  } catch {
    throw Object.assign(new Error(NO_ANSWER), { status: 0 });
  }
  if (response.ok || response.status === NOT_MODIFIED) return { response, value };
  const text = [value.message, value.hint].filter(Boolean).join("\n");
  throw Object.assign(new Error(text), { status: response.status });
}

// Return {value, etag}. With an earlier answer, return that one if nothing has changed. `signal` gives the request up.
export async function get(path, earlier = null, { seconds = ANSWER_SECONDS, signal } = {}) {
  const headers = earlier?.etag ? { "If-None-Match": earlier.etag } : {};
  const signals = [AbortSignal.timeout(1000 * seconds), signal].filter(Boolean);
  const { response, value } = await request(path, { signal: AbortSignal.any(signals) }, headers);
  return response.status === NOT_MODIFIED ? earlier : { value, etag: response.headers.get("ETag") };
}

export async function post(path, body) {
  const options = { method: "POST", body: JSON.stringify(body), signal: AbortSignal.timeout(1000 * ANSWER_SECONDS) };
  return (await request(path, options, { "Content-Type": "application/json" })).value;
}

// Whether asking again is of no use, as the request is refused.
export const isRefused = (error) => error.status >= 400 && error.status < 500;

export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// Wait until the page is visible: a hidden page asks for nothing.
export async function waitUntilVisible() {
  while (document.visibilityState !== "visible") {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}
