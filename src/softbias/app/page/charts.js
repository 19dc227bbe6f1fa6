// Line charts as SVG, so that the style sheet colors them in light and dark.

const NS = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [360, 220, 48, 10, 10, 36];

function shape(name, attributes, text) {
  const made = document.createElementNS(NS, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function ticks(low, high, count) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Number(value.toPrecision(8)));
  return found;
}

// zoom: do not begin at zero
// lines: [{name, points: [[x, y]], color: 0..5, dash}]; marks: [x] of upright lines
export function chart({ title, lines, percent = false, zoom = false, marks = [], x = "epoch" }) {
  const figure = document.createElement("figure");
  figure.className = "chart";
  const caption = document.createElement("figcaption");
  const strong = document.createElement("strong");
  strong.textContent = title;
  caption.append(strong, document.createElement("br"));
  for (const line of lines.filter((one) => one.name)) {
    const key = document.createElement("span");
    key.className = "key";
    const sample = shape("svg", { viewBox: "0 0 28 12", "aria-hidden": "true" });
    sample.append(shape("line", { x1: 0, x2: 28, y1: 6, y2: 6, class: `curve k${line.color % 6}${line.dash ? " dash" : ""}` }));
    key.append(sample, line.name);
    caption.append(key);
  }
  const points = lines.flatMap((line) => line.points);
  const xs = points.map((point) => point[0]);
  const low = Math.min(...xs), high = Math.max(...xs, low + 1);
  const ys = points.map((point) => point[1]);
  const top = Math.max(...ys, 1e-9);
  const least = zoom ? Math.max(0, Math.floor(Math.min(...ys) * 20 - 0.2) / 20) : 0;
  const levels = ticks(least, zoom ? Math.ceil(top * 20 + 0.2) / 20 : percent && top > 0.5 ? 1 : top * 1.02, 4);
  const most = Math.max(levels.at(-1), top);
  const across = (value) => LEFT + (WIDTH - LEFT - RIGHT) * (value - low) / (high - low);
  const up = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value - least) / (most - least);
  const said = (value) => percent ? `${Math.round(100 * value)}%` : String(value);
  const told = lines.map((line) => `${line.name || title} ${said(Number(line.points[0][1].toPrecision(3)))} at first, ${said(Number(line.points.at(-1)[1].toPrecision(3)))} at last`);
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} by ${x}: ${told.slice(0, 8).join("; ")}` });
  for (const level of levels) {
    svg.append(shape("line", { class: "gridline", x1: LEFT, x2: WIDTH - RIGHT, y1: up(level), y2: up(level) }));
    svg.append(shape("text", { x: LEFT - 6, y: up(level) + 4, "text-anchor": "end" }, said(level)));
  }
  for (const tick of ticks(low, high, 5).filter((value) => Number.isInteger(value))) {
    svg.append(shape("text", { x: across(tick), y: HEIGHT - 20, "text-anchor": "middle" }, String(tick)));
  }
  svg.append(shape("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, x));
  for (const mark of marks) svg.append(shape("line", { class: "now", x1: across(mark), x2: across(mark), y1: TOP, y2: HEIGHT - BOTTOM }));
  for (const line of lines) {
    const path = line.points.map(([a, b]) => `${across(a).toFixed(1)},${up(b).toFixed(1)}`).join(" ");
    svg.append(shape("polyline", { class: `curve k${line.color % 6}${line.dash ? " dash" : ""}`, points: path }));
    if (line.points.length === 1) svg.append(shape("circle", { class: `k${line.color % 6}`, cx: across(line.points[0][0]), cy: up(line.points[0][1]), r: 3 }));
  }
  figure.append(caption, svg);
  return figure;
}
