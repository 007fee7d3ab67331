// The page: its header, problems, and the view that the link names.
import { Component, html, render } from "./dom.js";
import { Dialog } from "./actions.js";
import { EventsView } from "./events.js";
import { LogsView } from "./logs.js";
import { change, follow, isReader, model, subscribe } from "./model.js";
import { OverviewView } from "./overview.js";
import { Pill } from "./parts.js";
import { CompareView, RunView } from "./runview.js";
import { RunsView } from "./runs.js";
import { takeToken } from "./server.js";

const LINKS = [["overview", "Overview"], ["runs", "Runs"], ["logs", "Logs"], ["events", "Events"]];
const ICONS = { running: "icon.svg", degraded: "icon-warn.svg", starting: "icon-warn.svg", pending: "icon-warn.svg" };

// The name of the view, and what it shows.
function readLink() {
  const [name, rest] = location.hash.slice(1).split(/\/(.*)/);
  return [name || "overview", rest ?? ""];
}

// A link that was cut off or typed may be no encoded text.
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Shows an error of a view in its place; other views can still be opened.
class Boundary extends Component {
  componentDidCatch(error) {
    this.setState({ error });
  }

  render({ children }, { error }) {
    return error ? html`<p class="problem">This is a bug in the page: ${error.message}</p>` : children;
  }
}

function View() {
  const [name, rest] = readLink();
  const key = location.hash;
  const names = [...new Set(rest.split(",").filter(Boolean).map(decode))];
  if (name === "run" && names.length === 1) return html`<${RunView} key=${key} run=${names[0]} model=${model} />`;
  if (name === "run" && names.length) return html`<${CompareView} key=${key} runs=${names} model=${model} />`;
  if (name === "runs") return html`<${RunsView} key=${key} model=${model} />`;
  if (name === "logs") return html`<${LogsView} key=${key} model=${model} tasks=${decode(rest)} />`;
  if (name === "events") return html`<${EventsView} key=${key} model=${model} />`;
  return html`<${OverviewView} key=${key} model=${model} />`;
}

function Header() {
  const { cluster = "tfcluster", state = "", tasks = [] } = model.view?.status ?? {};
  const ready = tasks.filter((task) => task.state === "ready").length;
  const [shown] = readLink(), links = LINKS.filter(([name]) => name !== "logs" || !isReader());
  return html`<header id="top">
    <h1 id="cluster">${cluster}</h1>
    <${Pill} id="cluster-state" state=${state} />
    <span id="summary" class="quiet">${tasks.length ? `${ready} of ${tasks.length} tasks ready` : ""}</span>
    ${isReader() && html`<span id="read-only" class="quiet">read-only</span>`}
    <nav aria-label="views">${links.map(([name, title]) => html`
      <a key=${name} href=${`#${name}`} aria-current=${name === shown ? "page" : null}>${title}</a>`)}</nav>
    <span id="link" class="quiet" role="status" data-state=${model.link}>${model.link}</span>
  </header>`;
}

function Problem({ id, text }) {
  return html`<p id=${id} class="problem" role="alert" hidden=${!text}>${text}</p>`;
}

function problemOfCluster() {
  const problems = Object.entries(model.view?.problems ?? {});
  const lines = problems.map(([host, reason]) => (reason.includes(host) ? reason : `${host}: ${reason}`));
  return model.problem || lines.join("\n");
}

function App() {
  return html`<${Header} />
    <${Problem} id="problem" text=${problemOfCluster()} />
    <${Problem} id="failure" text=${model.failure} />
    <main id="view" tabindex="-1"><${Boundary} key=${location.hash}><${View} /><//></main>
    <${Dialog} question=${model.question} />`;
}

// The title of the tab and its icon show the state.
function showInTab() {
  const { cluster, state } = model.view?.status ?? {};
  document.title = [cluster, model.link === "lost" ? "lost" : state, "tfcluster"].filter(Boolean).join(" · ");
  const icon = model.link === "lost" ? "icon-bad.svg" : ICONS[state] ?? (state ? "icon-bad.svg" : "icon.svg");
  const link = document.querySelector("link[rel=icon]");
  if (link.getAttribute("href") !== `/${icon}`) link.setAttribute("href", `/${icon}`);
}

function draw() {
  [document.body.dataset.view] = readLink();
  showInTab();
  render(html`<${App} />`, document.getElementById("page"));
}

addEventListener("hashchange", () => {
  if (takeToken()) location.reload();  // the link of another start of the command was opened in this tab
  change({ failure: "" });
  scrollTo(0, 0);  // the browser may have scrolled to a table of this name
});
subscribe(draw);
draw();
follow().catch((error) => change({ link: "lost", problem: `This is a bug in the page: ${error.message}` }));
