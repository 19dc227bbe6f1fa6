// Maps as colors on canvases: dark to light for positive values, blue for negative ones. The colors are those of theme.css.

const variable = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
const POSITIVE = stops(variable("--heat"));
const NEGATIVE = stops(variable("--cold"));
const QUERY = variable("--query");

function stops(text) {
  return text.split(/\s+/).map((hex) => [0, 2, 4].map((start) => parseInt(hex.slice(start, start + 2), 16)));
}

function color(value, ramp) {
  const at = Math.min(1, Math.max(0, value)) * (ramp.length - 1);
  const low = Math.min(ramp.length - 2, Math.floor(at));
  return ramp[low].map((channel, index) => channel + (at - low) * (ramp[low + 1][index] - channel));
}

export function largest(values) {
  let most = 1e-12;
  for (const value of values) most = Math.max(most, Math.abs(value));
  return most;
}

// One pixel per value, colored by `paint`: red, green, blue, opacity.
function small(values, height, width, paint) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  values.forEach((value, index) => image.data.set(paint(value), 4 * index));
  context.putImageData(image, 0, 0);
  return canvas;
}

function box(context, query, height, width, line) {
  if (!query) return;
  const [tall, wide] = [context.canvas.height / height, context.canvas.width / width];
  context.lineWidth = line + Math.min(2, line);
  context.strokeStyle = "rgba(0, 0, 0, .7)";
  const edges = [query[1] * wide + line / 2, query[0] * tall + line / 2, wide - line, tall - line];
  context.strokeRect(...edges);
  context.lineWidth = line;
  context.strokeStyle = QUERY;
  context.strokeRect(...edges);
}

export function drawMap(canvas, values, [height, width], most, query) {
  const zoom = Math.max(1, Math.ceil(96 / Math.max(height, width)));
  canvas.width = width * zoom;
  canvas.height = height * zoom;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  const paint = (value) => [...color(Math.abs(value) / most, value < 0 ? NEGATIVE : POSITIVE), 255];
  context.drawImage(small(values, height, width, paint), 0, 0, canvas.width, canvas.height);
  box(context, query, height, width, Math.max(1, zoom / 8));
}

// The picture, with heat over it where `heat` is given, and the query patch.
export function drawStage(canvas, picture, grid, query, heat) {
  const side = 640;
  const scale = side / Math.max(picture.naturalWidth, picture.naturalHeight);
  canvas.width = Math.round(picture.naturalWidth * scale);
  canvas.height = Math.round(picture.naturalHeight * scale);
  canvas.style.aspectRatio = `${canvas.width} / ${canvas.height}`;
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = scale < 2;
  if (heat) context.filter = "grayscale(1)";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  context.filter = "none";
  if (heat) {
    const { values, shape: [height, width] } = heat;
    const low = Math.min(...values), span = Math.max(Math.max(...values) - low, 1e-12);
    const shares = values.map((value) => (value - low) / span);
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.drawImage(small(shares, height, width, (share) => [...color(share, POSITIVE), 255 * (0.12 + 0.76 * share)]), 0, 0, canvas.width, canvas.height);
  }
  if (grid) {
    context.lineWidth = 1;
    context.strokeStyle = "rgba(140, 150, 160, .28)";
    context.beginPath();
    for (let row = 1; row < grid[0]; row++) { context.moveTo(0, row * canvas.height / grid[0]); context.lineTo(canvas.width, row * canvas.height / grid[0]); }
    for (let column = 1; column < grid[1]; column++) { context.moveTo(column * canvas.width / grid[1], 0); context.lineTo(column * canvas.width / grid[1], canvas.height); }
    context.stroke();
    box(context, query, grid[0], grid[1], 4);
  }
}
