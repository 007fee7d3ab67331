// Logs of tasks and runs, with a filter by task, text and time.
import { COLORS } from "./curves.js";
import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./dom.js";
import { shortName, today } from "./format.js";
import { Time } from "./parts.js";
import { get, isRefused, sleep, waitUntilVisible } from "./server.js";

const KEPT = 5000;  // lines
const PAUSE = 1000;  // milliseconds until lines are asked for again, if there was no answer
const AT_END = 40;  // pixels from the end that count as the end
const LEVELS = [["info", "all"], ["warning", "warning"], ["error", "error"]];
const NOTHING = { batches: [], hidden: 0, omitted: 0, problem: "", isKnown: false };

// Follow the lines of some logs; the command leaves out entries below a level. `filter` has tasks, grep, since, until.
export function useLog(firstLevel, filter) {
  const [level, setLevel] = useState(firstLevel);
  const [follows, setFollows] = useState(true), [wraps, setWraps] = useState(true);
  const [known, setKnown] = useState(NOTHING);
  const { tasks, grep, since, until, number } = filter;  // the number: of the times that the user has asked
  const wanted = Object.entries({ tasks, grep, since, until, level }).filter(([, value]) => value);
  const query = new URLSearchParams(wanted).toString();
  useEffect(() => {
    const closed = new AbortController();
    setKnown(NOTHING);
    readLog(query, closed.signal, setKnown);
    return () => closed.abort();
  }, [query, number]);
  return { ...known, filter, level, setLevel, follows, setFollows, wraps, setWraps };
}

// Each answer says after which place the next one begins. Without an answer, that place and the lines stay.
async function readLog(query, closed, setKnown) {
  let after = null, pause = PAUSE;
  for (let isOver = false; !isOver;) {
    await waitUntilVisible();
    if (closed.aborted) return;
    try {
      const place = after === null ? "" : `&after=${encodeURIComponent(after)}`;
      const { value } = await get(`/api/logs?${query}${place}`, null, { signal: closed });
      ({ after, end: isOver } = value);
      pause = 1000 * value.pause;
      setKnown((known) => addLines(known, value));
    } catch (error) {
      if (closed.aborted) return;
      isOver = isRefused(error);
      pause = PAUSE;
      setKnown((known) => ({ ...known, problem: error.message }));
    }
    if (!isOver) await sleep(pause);
  }
}

// The lines are in batches, so that those which are shown are not made again.
function addLines(known, { lines, hidden, omitted, problem }) {
  return {
    batches: lines.length ? addBatch(known.batches, lines) : known.batches,
    hidden: known.hidden + hidden,
    omitted: known.omitted + omitted,
    problem: problem ?? "",
    isKnown: known.isKnown || problem === null,
  };
}

function addBatch(batches, lines) {
  const all = [...batches, { number: (batches.at(-1)?.number ?? 0) + 1, lines }];
  let count = all.reduce((sum, batch) => sum + batch.lines.length, 0), first = 0;
  while (count - all[first].lines.length >= KEPT) count -= all[first++].lines.length;
  return all.slice(first);
}

export function LogControls({ log }) {
  const count = (number) => number.toLocaleString("en");
  const notes = [
    log.hidden ? `${count(log.hidden)} entries below this level are hidden` : "",
    log.omitted ? `${count(log.omitted)} earlier lines are left out` : "",
  ];
  const checkbox = (name, isChecked, set) => html`<label>
    <input type="checkbox" class=${name} checked=${isChecked} onChange=${(event) => set(event.target.checked)} /> ${name}</label>`;
  return html`<label>level <select class="level" value=${log.level} onChange=${(event) => log.setLevel(event.target.value)}>
      ${LEVELS.map(([value, name]) => html`<option key=${value} value=${value}>${name}</option>`)}</select></label>
    ${checkbox("follow", log.follows, log.setFollows)}${checkbox("wrap", log.wraps, log.setWraps)}
    <span class="quiet left-out">${log.batches.length ? notes.filter(Boolean).join(", ") : ""}</span>`;
}

// With `namesLogs`, each line has the name of its log; without, only that of the process, of a group.
export function LogLines({ log, namesLogs = false, whenEmpty = "No lines." }) {
  const node = useRef(), colors = useRef(new Map()), top = useRef(0);
  useLayoutEffect(() => {
    if (log.follows) node.current.scrollTop = node.current.scrollHeight;
  }, [log.batches, log.follows]);
  // Scrolling up pauses following, until the end is reached again.
  const onScroll = ({ target: { scrollTop, scrollHeight, clientHeight } }) => {
    const isAtEnd = scrollHeight - scrollTop - clientHeight < AT_END;
    if (scrollTop < top.current && !isAtEnd) log.setFollows(false);
    else if (scrollTop > top.current && isAtEnd) log.setFollows(true);
    top.current = scrollTop;
  };
  const shared = { day: today(), namesLogs, colors: colors.current };
  return html`<div class="logs">
    <p class="problem" hidden=${!log.problem}>${log.problem}</p>
    <div class=${`log ${log.wraps ? "" : "long"}`} tabindex="0" role="log" aria-label="lines of the log"
      ref=${node} onScroll=${onScroll}>
      ${log.batches.map(({ number, lines }) => html`<${Batch} key=${number} lines=${lines} ...${shared} />`)}
      ${!log.batches.length && html`<p class="quiet">${describeEmpty(log, whenEmpty)}</p>`}
    </div>
  </div>`;
}

// Why there are no lines.
function describeEmpty({ problem, isKnown, hidden, filter }, whenEmpty) {
  if (problem) return "";
  if (!isKnown) return "Reading…";
  if (hidden) return `No entries at this level (${hidden.toLocaleString("en")} hidden).`;
  return filter.grep || filter.since || filter.until ? "No lines match." : whenEmpty;
}

// Lines that came together; on another day, their times need the date.
class Batch extends Component {
  shouldComponentUpdate(next) {
    return next.lines !== this.props.lines || next.day !== this.props.day;
  }

  render({ lines, namesLogs, colors }) {
    return lines.map(({ task, member, time, line, level }) => {
      const source = [namesLogs ? task : "", member ?? ""].join(" ").trim();
      if (!colors.has(source)) colors.set(source, colors.size % COLORS);
      return html`<div data-level=${level}><span class="time"><${Time} seconds=${time} /> </span>
        ${source && html`<span class=${`source color-${colors.get(source)}`}>${source} </span>`}<span>${line}</span></div>`;
    });
  }
}

export function LogsView({ model, tasks }) {
  const [filter, setFilter] = useState({ tasks: listTasks(tasks), number: 0 });
  const log = useLog("warning", filter);
  const show = (event) => {
    event.preventDefault();
    const fields = Object.fromEntries(new FormData(event.target));
    const seconds = (text) => (text ? new Date(text).getTime() / 1000 : "");
    const times = { since: seconds(fields.since), until: seconds(fields.until) };
    setFilter({ tasks: listTasks(fields.tasks), grep: fields.grep, ...times, number: filter.number + 1 });
  };
  const { status, runs } = model.view ?? { status: { tasks: [] }, runs: [] };
  const names = [...status.tasks.map(shortName), ...runs.map((run) => run.run)];
  const time = (name, label) => html`<input type="datetime-local" step="1" name=${name} aria-label=${label} />`;
  return html`<section class="fill">
    <form class="filters" onSubmit=${show}><h2>Logs</h2>
      <input id="log-tasks" name="tasks" list="names" defaultValue=${tasks} placeholder="all tasks"
        aria-label="tasks, jobs or runs" />
      <input id="log-grep" name="grep" type="search" placeholder="text or regular expression" aria-label="text" />
      <label>from ${time("since", "since")}</label><label>to ${time("until", "until")}</label>
      <button type="submit">Show</button>
      <datalist id="names">${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist></form>
    <div class="filters"><${LogControls} log=${log} /></div>
    <${LogLines} log=${log} namesLogs=${true} />
  </section>`;
}

const listTasks = (text) => text.split(/[\s,]+/).filter(Boolean).join(",");
