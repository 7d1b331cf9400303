// A picture with what is marked and added at its sides: how the visitor sees it, and its files.
import { makeCanvas } from "./marks.js";

const MOST_PIXELS = 2 ** 22; // of a file; the server uses no more
const MOST_SIDE = 2048; // of the picture itself
const MOST_PNG = 2 ** 22; // bytes; a larger picture is sent as JPEG
const MOST_KEPT = 3 * 2 ** 20; // the same for the tab's storage
const OVERLAP = 16; // pixels of the picture that are redrawn where it is extended
const MARKED = 0.5; // opacity of the marks, as in tools.css
const THUMBNAIL = 84; // pixels of its longer side

// Returns an empty sheet of paper, of a width and height in pixels.
export const blank = (width, height) => {
  const canvas = makeCanvas(width, height);
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  return canvas;
};

// Returns the picture in a file or an image, upright, on white and reduced; null if it has more than
// `most` pixels.
export const read = async (source, most) => {
  const image = await createImageBitmap(source);
  if (image.width * image.height > most) return null;
  const scale = Math.min(1, MOST_SIDE / Math.max(image.width, image.height));
  const [width, height] = [image.width, image.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = blank(width, height);
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(image, 0, 0, width, height);
  image.close();
  return canvas;
};

export const sizeOf = ({ picture: { width, height }, sides: { top, right, bottom, left } }) => (
  [width + left + right, height + top + bottom]
);
const isExtended = ({ sides }) => Object.values(sides).some(Boolean);

// Draws the picture, whose edges go on into what is added.
const drawPicture = (context, { picture, sides: { top, right, bottom, left } }) => {
  const { width, height } = picture;
  const columns = [[0, 1, 0, left], [0, width, left, width], [width - 1, 1, left + width, right]];
  const rows = [[0, 1, 0, top], [0, height, top, height], [height - 1, 1, top + height, bottom]];
  for (const [x, wide, toX, toWide] of columns) {
    for (const [y, high, toY, toHigh] of rows) {
      if (toWide && toHigh) context.drawImage(picture, x, y, wide, high, toX, toY, toWide, toHigh);
    }
  }
};

// The part that is drawn in the shape of one of `sizes`: [x, y, width, height].
export const partOf = ([width, height], sizes) => {
  const unlikeness = ([wide, high]) => Math.abs(Math.log((wide * height) / (high * width)));
  const [wide, high] = [...sizes].sort((one, other) => unlikeness(one) - unlikeness(other))[0];
  const scale = Math.min(width / wide, height / high);
  const part = [Math.round(scale * wide), Math.round(scale * high)];
  return [Math.floor((width - part[0]) / 2), Math.floor((height - part[1]) / 2), ...part];
};

// Shows the picture on a canvas, with what is added at its sides in the colour of the marks.
export const show = (canvas, state) => {
  const [width, height] = sizeOf(state);
  const scale = Math.min(1, MOST_SIDE / Math.max(width, height));
  Object.assign(canvas, { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  drawPicture(context, state);
  const { picture, marks, sides: { top, left } } = state;
  context.fillStyle = marks.colour;
  context.globalAlpha = MARKED;
  fillAround(context, [width, height], [left, top, picture.width, picture.height]);
};

// Returns a small picture of what `show` made, with what is marked, as a file.
export const toThumbnail = (shown, state) => {
  const scale = THUMBNAIL / Math.max(shown.width, shown.height);
  const canvas = makeCanvas(Math.ceil(shown.width * scale), Math.ceil(shown.height * scale));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(shown, 0, 0, canvas.width, canvas.height);
  const { picture, marks, sides: { top, left } } = state;
  const share = canvas.width / sizeOf(state)[0];
  context.globalAlpha = state.isSketch ? 1 : MARKED;
  context.drawImage(marks.canvas, ...[left, top, picture.width, picture.height].map((pixels) => pixels * share));
  return toBlob(canvas, "image/png");
};
const fillAround = (context, [width, height], [x, y, wide, high]) => {
  context.beginPath();
  context.rect(0, 0, width, height);
  context.rect(x, y, wide, high);
  context.fill("evenodd");
};

const toBlob = (canvas, ...kind) => new Promise((done) => canvas.toBlob(done, ...kind));

// Returns a canvas as a PNG file, or as a JPEG file if that would have more than `most` bytes.
const toFile = async (canvas, most) => {
  const png = await toBlob(canvas, "image/png");
  return png.size > most ? toBlob(canvas, "image/jpeg", 0.95) : png;
};

// Returns a picture as a text, for the storage of the tab, which holds about 5 million characters.
export const toText = async (picture) => {
  const reader = new FileReader();
  reader.readAsDataURL(await toFile(picture, MOST_KEPT));
  await new Promise((done) => reader.addEventListener("loadend", done));
  return reader.result;
};

export const hasMask = (state) => !state.isSketch && (isExtended(state) || !state.marks.isEmpty);

// Returns an empty canvas for a file of a request, on which the whole picture is drawn in its own pixels.
const sheet = (state) => {
  const [width, height] = sizeOf(state);
  const scale = Math.min(1, Math.sqrt(MOST_PIXELS / (width * height)));
  const canvas = makeCanvas(Math.floor(width * scale), Math.floor(height * scale));
  const context = canvas.getContext("2d");
  context.scale(canvas.width / width, canvas.height / height);
  return { canvas, context };
};

// Returns the picture with what is added at its sides as a file, or a sketch: what is drawn on white.
export const toImage = async (state) => {
  const { canvas, context } = sheet(state);
  drawPicture(context, state);
  if (state.isSketch) context.drawImage(state.marks.canvas, 0, 0);
  return toFile(canvas, MOST_PNG);
};

// Returns the part to redraw in white as a file; null for all of it.
export const toMask = async (state) => {
  if (!hasMask(state)) return null;
  const { canvas, context } = sheet(state);
  const { picture, marks, sides: { top, right, bottom, left } } = state;
  const whole = sizeOf(state);
  context.drawImage(marks.canvas, left, top);
  context.globalCompositeOperation = "source-in";
  context.fillStyle = "white";
  context.fillRect(0, 0, ...whole);
  context.globalCompositeOperation = "source-over";
  const inset = (side) => (side ? OVERLAP : 0);
  const kept = [left + inset(left), top + inset(top)];
  kept.push(left + picture.width - inset(right) - kept[0], top + picture.height - inset(bottom) - kept[1]);
  if (isExtended(state)) fillAround(context, whole, kept);
  context.globalCompositeOperation = "destination-over";
  context.fillStyle = "black";
  context.fillRect(0, 0, ...whole);
  return toBlob(canvas, "image/png");
};
