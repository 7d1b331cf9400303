// A picture with what is marked and added at its sides: how the visitor sees it, and its files.
import { makeCanvas } from "./marks.js";

const MOST_PIXELS = 2 ** 22; // of a file; the server uses no more
const MOST_SIDE = 2048; // of the picture itself
const MOST_PNG = 2 ** 22; // bytes; a larger picture is sent as JPEG
const MOST_KEPT = 3 * 2 ** 20; // the same for the tab's storage
const OVERLAP = 16; // pixels of the picture that are redrawn where it is extended

// Returns the picture in a file or an image, upright, on white and reduced; null if it has more than
// `most` pixels.
export const read = async (source, most) => {
  const image = await createImageBitmap(source);
  if (image.width * image.height > most) return null;
  const scale = Math.min(1, MOST_SIDE / Math.max(image.width, image.height));
  const [width, height] = [image.width, image.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = makeCanvas(width, height);
  const context = canvas.getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
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

// Shows all on a canvas; what is outside `part`, if that is given, is shaded.
export const show = (canvas, state, most, part) => {
  const [width, height] = sizeOf(state);
  const scale = Math.min(1, most / Math.max(width, height));
  Object.assign(canvas, { width: Math.ceil(width * scale), height: Math.ceil(height * scale) });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  drawPicture(context, state);
  const { picture, marks, sides: { top, left } } = state;
  context.fillStyle = marks.colour;
  context.globalAlpha = 0.5;
  context.drawImage(marks.canvas, left, top);
  fillAround(context, [width, height], [left, top, picture.width, picture.height]);
  if (!part) return;
  context.fillStyle = "black";
  context.globalAlpha = 0.65;
  fillAround(context, [width, height], part);
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

// Returns the picture as a file, and the part to redraw in white as another, or null for all of it.
export const toFiles = async (state) => {
  const [width, height] = sizeOf(state);
  const scale = Math.min(1, Math.sqrt(MOST_PIXELS / (width * height)));
  const image = makeCanvas(Math.floor(width * scale), Math.floor(height * scale));
  const context = image.getContext("2d");
  context.scale(image.width / width, image.height / height);
  drawPicture(context, state);
  const file = await toFile(image, MOST_PNG);
  return { image: file, mask: hasMask(state) ? await toMask(state, image) : null };
};
export const hasMask = (state) => isExtended(state) || !state.marks.isEmpty;

const toMask = async (state, { width, height }) => {
  const { picture, marks, sides: { top, right, bottom, left } } = state;
  const mask = makeCanvas(width, height);
  const context = mask.getContext("2d");
  const whole = sizeOf(state);
  context.scale(width / whole[0], height / whole[1]);
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
  return toBlob(mask, "image/png");
};
