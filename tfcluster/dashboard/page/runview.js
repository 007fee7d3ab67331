// One run, or several that are compared, as they change.
import { cancelRun } from "./actions.js";
import { COLORS, Curves } from "./curves.js";
import { html, useEffect, useMemo, useState } from "./dom.js";
import { save } from "./download.js";
import { durationOf, formatDuration, formatNumber, isActive, programOf } from "./format.js";
import { LogControls, LogLines, useLog } from "./logs.js";
import { isReader } from "./model.js";
import { Facts, linkToRuns, Pill, Time } from "./parts.js";
import { describeError } from "./runlist.js";
import { columnsOf } from "./runtable.js";
import { get, isRefused, sleep, waitUntilVisible } from "./server.js";
import { DataTable, Table } from "./table.js";
import { Trials } from "./trials.js";

const PAUSE = 1000;  // milliseconds between two requests for a run
const AT_ONCE = 3;  // requests: a browser has six connections, and the view needs one

// Return {answers, problems} of runs by their names, asked for until the runs have ended.
function useRuns(names) {
  const [known, setKnown] = useState({ answers: {}, problems: {} });
  useEffect(() => {
    const closed = new AbortController();
    followRuns(names, closed.signal, setKnown);
    return () => closed.abort();
  }, [names.join()]);
  return known;
}

async function followRuns(names, closed, tell) {
  const answers = {}, problems = {}, ended = new Set();
  const ask = async (name) => {
    try {
      const answer = await get(`/api/runs/${encodeURIComponent(name)}`, answers[name], { signal: closed });
      answers[name] = answer;
      delete problems[name];
      if (!isActive(answer.value.record) && answer.value.is_complete) ended.add(name);
    } catch (error) {
      problems[name] = error.message;
      if (isRefused(error)) ended.add(name);
    }
  };
  while (!closed.aborted && ended.size < names.length) {
    await waitUntilVisible();
    const wanted = closed.aborted ? [] : names.filter((name) => !ended.has(name));
    const work = Array.from({ length: AT_ONCE }, async () => { while (wanted.length) await ask(wanted.shift()); });
    await Promise.all(work);
    if (closed.aborted) return;
    const values = Object.entries(answers).map(([name, answer]) => [name, answer.value]);
    tell({ answers: Object.fromEntries(values), problems: { ...problems } });
    await sleep(PAUSE);
  }
}

function Problems({ problems }) {
  const texts = [...new Set(Object.values(problems))];
  return texts.map((text) => html`<p key=${text} class="problem">${text}</p>`);
}

export function RunView({ run, model }) {
  const { answers, problems } = useRuns([run]);
  const answer = answers[run];
  const series = useMemo(() => (answer?.series ?? []).map((each) => ({ ...each, run: 0 })), [answer]);
  const log = useLog("info", { tasks: run });
  const summary = model.view?.runs.find((each) => each.run === run);
  const record = answer && { ...summary, ...answer.record };
  const isRunning = record && isActive(record);
  const seconds = record && durationOf(summary ?? record, model.age);
  const cancel = () => cancelRun(model.view.status.cluster, run);
  return html`<section class="run">
    <div class="right">
      <button type="button" class="cancel" hidden=${!isRunning || !model.view?.is_owner} onClick=${cancel}>Cancel</button></div>
    <div class="head">${record && html`<${Head} record=${record} members=${answer.members} seconds=${seconds} />`}</div>
    <${Problems} problems=${problems} />
    <div class="progress">
      ${isRunning && html`<${Progress} progress=${answer.progress} activity=${summary?.activity} />`}</div>
    <${Curves} series=${series}><${CompareWith} runs=${[run]} model=${model} /><//>
    <div class="outcome">${answer && html`<${Outcome} record=${record} notes=${answer.notes} />
      <${Members} members=${answer.members} /><${Trials} trials=${answer.trials} />`}</div>
    <${GraphButton} run=${run} hidden=${!answer?.has_graph} />
    <div class="filters"><h3>Output</h3>${!isReader() && html`<${LogControls} log=${log} />`}</div>
    <${LogLines} log=${log} whenEmpty=${isRunning ? "No output yet." : "No output."} />
  </section>`;
}

function Head({ record, members, seconds }) {
  const { origin, waited } = record;
  const known = members.map((member) => member.exit_code).filter((code) => code !== null && code !== undefined);
  const facts = [
    ["program", programOf(record)],
    ["inputs", record.inputs],
    ["began", html`<${Time} seconds=${record.started} />`],
    ["waited", waited > 1 ? `${formatDuration(waited)} in the queue` : ""],
    ["took", formatDuration(seconds)],
    ["time limit", formatDuration(record.timeout)],
    ["exit code", record.result?.exit_code ?? [...new Set(known)].join(", ")],
    ["commit", origin?.commit ? `${origin.commit.slice(0, 12)}${origin.is_clean ? "" : " with changes"}` : ""],
  ];
  return html`<h2>${record.run} <${Pill} state=${record.state} /></h2><${Facts} pairs=${facts} />
    ${record.error && html`<p class="problem">${describeError(record.error)}</p>`}`;
}

function Progress({ progress, activity }) {
  const count = (number) => number.toLocaleString("en");
  return html`${progress && html`<progress max=${progress.total || 1} value=${progress.done} aria-label="progress" />
    <span> ${count(progress.done)} of ${count(progress.total)} ${progress.unit} ${timeLeft(progress)}</span>`}
    ${activity && html`<p class="activity">${activity}</p>`}`;
}

function timeLeft({ done, total, seconds }) {
  const canEstimate = done >= 0.05 * total || seconds >= 10;  // as in settings.py
  if (!done || !seconds || done >= total || !canEstimate) return "";
  return `· about ${formatDuration((seconds / done) * (total - done))} left`;
}

// The latest metrics of an active script, which are in its record too, are below its curves.
function Outcome({ record, notes }) {
  const result = (isActive(record) ? null : record.result) ?? {};
  const hasParts = (value) => value !== null && typeof value === "object";
  const { exit_code: code, restarts, ...others } = result;  // the head has the exit code
  const all = Object.entries({ ...others, restarts: restarts || null });
  const plain = all.filter(([, value]) => value !== null && !hasParts(value));
  const partsOf = (name, value) => Object.entries(value).map(([metric, last]) => [`${name} ${metric}`, last]);
  const metrics = Object.entries(result.metrics ?? {});
  const nested = metrics.flatMap(([name, value]) => (hasParts(value) ? partsOf(name, value) : [[name, value]]));
  const pairs = [...plain, ...nested].map(([name, value]) => [name, formatNumber(value)]);
  return html`${notes.map((note) => html`<p key=${note} class="note">${note}</p>`)}
    ${pairs.length > 0 && html`<h3>Result</h3><${Facts} pairs=${pairs} />`}`;
}

const MEMBER_COLUMNS = [
  { name: "task", cell: (member) => member.task },
  { name: "host", cell: (member) => member.host },
  { name: "state", cell: (member) => html`<${Pill} state=${member.state} />` },
  { name: "exit code", cell: (member) => member.exit_code },
];

function Members({ members }) {
  return members.length > 0 && html`<h3>Processes</h3>
    <${Table} name="processes" columns=${MEMBER_COLUMNS} items=${members} keyOf=${(member) => `${member.task} ${member.host}`} />`;
}

function GraphButton({ run, hidden }) {
  const [problem, setProblem] = useState("");
  const download = async () => {
    try {
      const { value } = await get(`/api/runs/${encodeURIComponent(run)}/graph`);
      save(`${run}.dot`, new Blob([value.dot], { type: "text/vnd.graphviz" }));
      setProblem("");
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<p hidden=${hidden}><button type="button" class="graph" onClick=${download}>Placed graph (.dot)</button>
    <span class=${problem ? "problem" : ""} role="status">${problem}</span></p>`;
}

function CompareWith({ runs, model }) {
  const others = (model.view?.runs ?? []).map((each) => each.run).filter((each) => !runs.includes(each)).reverse();
  const [chosen, setChosen] = useState("");
  const compare = () => { location.hash = linkToRuns([...runs, chosen]); };
  // The arrow keys go through a list that is closed, too: a choice alone leads nowhere.
  return html`<span class="group"><select id="compare" aria-label="compare with another run" value=${chosen}
      onChange=${(event) => setChosen(event.target.value)}>
    <option value="">Compare with…</option>
    ${others.map((other) => html`<option key=${other} value=${other}>${other}</option>`)}</select>
    <button type="button" id="compare-run" disabled=${!chosen} onClick=${compare}>Compare</button></span>`;
}

// Several runs on the same charts, and a table of them; a run has the same colour everywhere.
export function CompareView({ runs, model }) {
  const { answers, problems } = useRuns(runs);
  const series = useMemo(() => runs.flatMap((run, index) => (answers[run]?.series ?? []).map((each) => ({
    ...each, run: index, reporter: `${run} ${each.reporter}`.trim(),
  }))), runs.map((run) => answers[run]));
  const summaries = new Map((model.view?.runs ?? []).map((each) => [each.run, each]));
  const recordOf = (run) => ({ metrics: lastValues(answers[run].series), ...answers[run].record, ...summaries.get(run) });
  const records = runs.filter((run) => answers[run]).map(recordOf);
  const marker = (run) => html`<span class=${`swatch color-${runs.indexOf(run.run) % COLORS}`}></span>`;
  return html`<section class="run">
    <div class="filters"><h2>${runs.length} runs</h2>
      ${runs.map((run, index) => html`<${Chip} key=${run} runs=${runs} index=${index} />`)}
      <${CompareWith} runs=${runs} model=${model} /></div>
    <${Problems} problems=${problems} />
    <${Curves} series=${series} isCompared=${true} />
    ${records.length > 0 && html`<${DataTable} name="compared-runs" columns=${columnsOf(records, model.age, marker)}
      items=${records} keyOf=${(run) => run.run}><h3>Parameters and last metrics</h3><//>`}
  </section>`;
}

// The last value of each metric, for a run that is no longer among the latest.
function lastValues(series) {
  return Object.fromEntries(series.map(({ name, points }) => [name, points.at(-1)?.[1]]));
}

function Chip({ runs, index }) {
  const run = runs[index], others = runs.filter((each) => each !== run);
  return html`<span class="chip"><span class=${`swatch color-${index % COLORS}`}></span>
    <a href=${linkToRuns([run])}>${run}</a>
    <a href=${linkToRuns(others)} aria-label=${`no longer compare with ${run}`}>✕</a></span>`;
}
