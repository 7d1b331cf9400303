// The marked part of a picture: strokes, boxes and inversions, kept in order so that each can be undone.

export const makeCanvas = (width, height) => (
  Object.assign(document.createElement("canvas"), { width, height })
);

// Stripes, which are seen on pictures of any colour.
const stripes = (context, side) => {
  const tile = makeCanvas(2 * side, 2 * side);
  const drawn = tile.getContext("2d");
  drawn.fillStyle = "white";
  drawn.fillRect(0, 0, 2 * side, 2 * side);
  Object.assign(drawn, { strokeStyle: "#d6006c", lineWidth: side * Math.SQRT1_2 * 1.4 });
  for (const x of [-2, 0, 2]) {
    drawn.moveTo((x - 1) * side, 3 * side);
    drawn.lineTo((x + 3) * side, -side);
  }
  drawn.stroke();
  return context.createPattern(tile, "repeat");
};

export class Marks {
  #isEmpty; // looked up once after each change

  // Without a `colour`, striped.
  constructor(width, height, steps = [], colour = undefined) {
    this.canvas = makeCanvas(width, height);
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.colour = colour ?? stripes(this.context, Math.max(4, Math.round(Math.min(width, height) / 60)));
    Object.assign(this.context, { fillStyle: this.colour, strokeStyle: this.colour });
    Object.assign(this.context, { lineCap: "round", lineJoin: "round" });
    this.steps = steps;
    this.#redraw();
  }

  get isEmpty() {
    this.#isEmpty ??= this.#looksEmpty();
    return this.#isEmpty;
  }

  #looksEmpty() {
    const { width, height } = this.canvas;
    const { data } = this.context.getImageData(0, 0, width, height);
    for (let i = 3; i < data.length; i += 4) if (data[i] > 127) return false;
    return true;
  }

  // A step is { line: [[x, y], ...], size, erases }, { box: [x, y, width, height], erases },
  // { inverts: true } or { clears: true }.
  add(step) {
    this.steps.push(step);
    this.#draw(step);
  }

  // Continues the line of the last step.
  extend(points) {
    const { line, size, erases } = this.steps.at(-1);
    const last = line.at(-1);
    line.push(...points);
    this.#draw({ line: [last, ...points], size, erases });
  }

  undo() {
    this.steps.pop();
    this.#redraw();
  }

  #redraw() {
    this.#draw({ clears: true });
    this.steps.forEach((step) => this.#draw(step));
  }

  #draw({ line, size, box, erases, inverts, clears }) {
    const { context } = this;
    const { width, height } = this.canvas;
    this.#isEmpty = undefined;
    if (clears) context.clearRect(0, 0, width, height);
    context.globalCompositeOperation = erases ? "destination-out" : "source-over";
    if (line) {
      context.lineWidth = size;
      context.beginPath();
      context.moveTo(...line[0]);
      for (const point of line.length > 1 ? line.slice(1) : line) context.lineTo(...point);
      context.stroke();
    }
    if (box) context.fillRect(...box);
    if (inverts) {
      context.globalCompositeOperation = "source-out"; // the colour where there was none
      context.fillRect(0, 0, width, height);
    }
  }
}
