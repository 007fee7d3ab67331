// What is known of the cluster, and the requests that keep it up to date.
import { get, sleep, waitUntilVisible } from "./server.js";

const SAMPLES = 150, SAMPLES_SECONDS = 480;  // older ones are not of the last minutes
const PAUSE = 250, RETRY = 1000;  // milliseconds until the page asks again
const VIEW_SECONDS = 30;  // until an answer counts as missing; the command waits up to 10 s for news
const NO_TOKEN = "This page needs the link that `tfcluster dashboard` printed, because the link ends with a token.";

export const model = {
  link: "connecting",  // or live, lost, no access
  problem: "",  // of the link
  failure: "",  // of the last action
  question: null,  // see actions.js
  view: null,  // the answer of /api/view
  received: 0,  // when, by performance.now()
  age: 0,  // seconds since then; the time stands still while there is no answer
  samples: [],
};
const listeners = new Set();
const lastKnown = new Map();  // hosts by name, as they were when they were up

export function subscribe(listener) {
  listeners.add(listener);
}

export function change(values) {
  Object.assign(model, values);
  for (const listener of listeners) listener();
}

// Whether the link is for readers, who cannot act and see no logs; the command refuses what the page does not offer.
export const isReader = () => model.view !== null && !model.view.is_owner;

// The Unix time of what is shown.
export function timeNow() {
  return model.view ? model.view.time + model.age : Date.now() / 1000;
}

export async function follow() {
  setInterval(tick, 1000);
  loadSamples();
  for (let answer = null; model.link !== "no access";) {
    await waitUntilVisible();
    try {
      const next = await get("/api/view", answer, { seconds: VIEW_SECONDS });
      if (next === answer) change({ link: "live", problem: "" });
      else take(next.value);
      answer = next;
      await sleep(PAUSE);
    } catch (error) {
      if (error.status === undefined) change({ failure: `This is a bug in the page: ${error.message}` });
      else if (error.status === 401) change({ link: "no access", problem: NO_TOKEN });
      else change({ link: "lost", problem: error.message });
      await sleep(RETRY);
    }
  }
}

function tick() {
  if (model.link !== "live" || document.visibilityState !== "visible") return;
  change({ age: (performance.now() - model.received) / 1000 });
}

function take(view) {
  const isMeasured = view.measured !== null && view.measured !== model.view?.measured;
  view.status.hosts = view.status.hosts.map(completeHost);
  view.runs = view.runs.map((run) => completeRun(run, view.status.runs));
  const samples = isMeasured ? addSamples(model.samples, [sampleOf(view)]) : model.samples;
  change({ view, samples, received: performance.now(), age: 0, link: "live", problem: "" });
}

// A host that is not up keeps what was last known of it.
function completeHost(host) {
  if (host.state === "up") lastKnown.set(host.host, host);
  const { load = null, tensorflow = null } = lastKnown.get(host.host) ?? {};
  return host.state === "up" ? host : { ...host, load: host.load ?? load, tensorflow: host.tensorflow ?? tensorflow };
}

// The status has the newest duration of a run that is running; its record may be older.
function completeRun(run, statuses) {
  if (run.state !== "running") return run;
  return { ...run, seconds: statuses.find((each) => each.run === run.run)?.seconds ?? run.seconds };
}

function sampleOf({ measured, status }) {
  const used = status.tasks.map((task) => [task.task, [task.cpu_percent, task.rss_bytes]]);
  return { time: measured, tasks: Object.fromEntries(used) };
}

function addSamples(before, after) {
  const last = before.at(-1)?.time ?? -Infinity;
  const all = [...before, ...after.filter((sample) => sample.time > last)].slice(-SAMPLES);
  return all.filter((sample) => sample.time > all.at(-1).time - SAMPLES_SECONDS);
}

async function loadSamples() {
  await waitUntilVisible();
  try {
    const { value } = await get("/api/samples");
    change({ samples: addSamples(value, model.samples) });
  } catch { /* the sparklines begin now */ }
}
