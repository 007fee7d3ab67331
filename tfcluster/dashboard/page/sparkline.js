// A small line of the last minutes in a cell of a table.
import { Component, html } from "./dom.js";

const WIDTH = 64, HEIGHT = 18, EDGE = 2;  // pixels
const ROOM = 0.25, SMALLEST = 0.05;  // above and below the values: a part of their range, and at least of their size

// The CPU time (`index` 0) or the memory (1) of a task in the samples; it has gaps for unknown values. With `top`, the
// scale is from 0 to that, or to the highest value. Without, it is that of the values; a flat line is in the middle.
export class Sparkline extends Component {
  shouldComponentUpdate(next) {
    return next.samples !== this.props.samples;
  }

  render({ samples, task, index, top }) {
    const values = samples.map((sample) => sample.tasks[task]?.[index] ?? null);
    const box = `0 0 ${WIDTH} ${HEIGHT}`;
    return html`<svg class="spark" viewBox=${box} width=${WIDTH} height=${HEIGHT} aria-hidden="true"><path d=${pathOf(values, top)} /></svg>`;
  }
}

function pathOf(values, top) {
  const [low, high] = top ? [0, Math.max(top, ...values)] : scaleOf(values.filter((value) => value !== null));
  const step = WIDTH / Math.max(1, values.length - 1);
  const place = (value, index) => {
    if (value === null) return "";
    const y = HEIGHT - EDGE - ((value - low) / (high - low)) * (HEIGHT - 2 * EDGE);
    return `${(values[index - 1] ?? null) === null ? "M" : "L"}${(index * step).toFixed(1)},${y.toFixed(1)}`;
  };
  return values.map(place).join("");
}

function scaleOf(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const room = Math.max(ROOM * (high - low), SMALLEST * Math.abs(high)) || 1;
  return [low - room, high + room];
}
