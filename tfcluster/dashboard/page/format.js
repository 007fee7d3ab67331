// Numbers, times and durations as text.

export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function formatBytes(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) { bytes /= 1024; unit += 1; }
  return `${unit > 0 && bytes < 10 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
}

export function formatPercent(value) {
  return value === null || value === undefined ? "" : `${value < 10 ? value.toFixed(1) : Math.round(value)} %`;
}

export function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

// A number on an axis, whose ticks are a step apart.
export function formatTick(value, step) {
  const digits = Math.max(0, 1 - Math.floor(Math.log10(step)));
  const isPlain = digits <= 8 && Math.abs(value) < 1e7;
  return isPlain ? value.toLocaleString("en", { maximumFractionDigits: digits }) : formatNumber(value);
}

const two = (number) => String(number).padStart(2, "0");

export function formatDay(seconds) {
  const date = new Date(1000 * seconds);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

export function formatClock(seconds) {
  const date = new Date(1000 * seconds);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
}

export const today = () => formatDay(Date.now() / 1000);

// The time of day, with the date unless it is today.
export function formatTime(seconds) {
  const day = formatDay(seconds);
  return day === today() ? formatClock(seconds) : `${day} ${formatClock(seconds)}`;
}

const WEEKDAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

// The full date and time with its zone: `Sun 2026-11-29 22:34:03 UTC+01:00 (Europe/Berlin)`.
export function formatFullTime(seconds) {
  const date = new Date(1000 * seconds), offset = -date.getTimezoneOffset(), size = Math.abs(offset);
  const shift = `${offset < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
  return `${WEEKDAYS[date.getDay()]} ${formatDay(seconds)} ${formatClock(seconds)} UTC${shift} (${ZONE})`;
}

export function shortName(task) {
  return `${task.job}:${task.index}`;
}

export function programOf(run) {
  return run.program === "script" ? run.script ?? run.parameters?.argument ?? "script" : run.program;
}

export const isActive = (run) => ["queued", "running"].includes(run.state);

// The seconds that a run took; those of an active one are `age` seconds old.
export function durationOf(run, age) {
  return run.seconds !== null && run.seconds !== undefined && run.state === "running" ? run.seconds + age : run.seconds;
}
