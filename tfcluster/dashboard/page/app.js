// The page: its link to the command, and which view is shown.
import { setText } from "./dom.js";
import { follow } from "./server.js";
import { tell } from "./actions.js";
import { OverviewView } from "./overview.js";
import { RunView } from "./runview.js";
import { LogsView } from "./logs.js";
import { EventsView } from "./events.js";

const SAMPLES = 150, EVENTS = 500;
// What all views show. `runs` has the progress of the active runs.
const model = { status: null, problems: {}, records: [], progress: {}, samples: [], events: [] };
let view = null;

function route() {
  const [name, rest] = location.hash.slice(1).split(/\/(.*)/);
  const parent = document.getElementById("view");
  view?.close?.();
  parent.replaceChildren();
  document.body.dataset.view = name || "overview";
  tell("");
  if (name === "run" && rest) view = new RunView(parent, rest, model);
  else if (name === "logs") view = new LogsView(parent, model, rest ? decodeURIComponent(rest) : "");
  else if (name === "events") view = new EventsView(parent);
  else view = new OverviewView(parent);
  for (const link of document.querySelectorAll("nav a")) {
    const isShown = link.getAttribute("href") === `#${name || "overview"}`;
    if (isShown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  view.update(model, "all");
}

function take(kind, value) {
  if (kind === "state") {
    Object.assign(model, { status: value.status, problems: value.problems, records: value.runs, time: value.time });
    showTop();
  } else if (kind === "samples") {
    model.samples = [...model.samples, ...value].slice(-SAMPLES);
  } else if (kind === "events") {
    model.events = [...model.events, ...value].slice(-EVENTS);
  } else if (kind === "runs") {
    model.progress = value.progress;
    model.changed = value.changed;
  }
  view?.update(model, kind);
}

function showTop() {
  const { status, problems } = model;
  document.title = `${status.cluster} · ${status.state} · tfcluster`;
  setText(document.getElementById("cluster"), status.cluster);
  const state = document.getElementById("cluster-state");
  setText(state, status.state);
  state.dataset.state = status.state;
  const ready = status.tasks.filter((task) => task.state === "ready").length;
  setText(document.getElementById("summary"), status.tasks.length ? `${ready} of ${status.tasks.length} tasks ready` : "");
  const lines = Object.entries(problems).map(([host, reason]) => (reason.includes(host) ? reason : `${host}: ${reason}`));
  tell(lines.join("\n"), "problem");
}

async function stayConnected() {
  const link = document.getElementById("link");
  for (;;) {
    try {
      Object.assign(model, { samples: [], events: [] });
      await follow("/api/state", undefined, (kind, value) => {
        setText(link, "live");
        link.dataset.state = "live";
        take(kind, value);
      });
    } catch (error) {
      if (error.status === 401) {
        setText(link, "no access");
        tell("This page needs the link that `tfcluster dashboard` printed, because the link ends with a token.", "problem");
        return;
      }
    }
    link.dataset.state = "lost";
    setText(link, "lost");
    tell("`tfcluster dashboard` does not answer: it has stopped or is busy. This page keeps trying.", "problem");
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

addEventListener("hashchange", route);
route();
stayConnected();
