// This browser's own requests: kept in its storage, and sent nowhere. The tab keeps which of them are of
// this visit.
import { kept, make } from "./app.js";

// Each entry has a key of its own. Other tabs' changes arrive a moment late, so a tab that wrote all
// entries together would lose those that another one adds at the same time.
const KEY = "sdxl-history ";
const VISIT = ["sessionStorage", "sdxl-visit"];
const MOST = 30; // besides the favourites
const MOST_FAVOURITES = 100;
const SIDE = 96; // of a thumbnail, in pixels

const isPlace = (place) => Number.isInteger(place) && place >= 0;

// The storage may hold anything: other versions of this page, or pages of its origin, write it.
export const isEntry = (entry) => (
  ["id", "link", "said"].every((name) => typeof entry?.[name] === "string")
  && Number.isFinite(new Date(entry.at).getTime())
  && ["string", "undefined"].includes(typeof entry.look)
  && ["boolean", "undefined"].includes(typeof entry.favourite)
  && (entry.gone === undefined || (Array.isArray(entry.gone) && entry.gone.every(isPlace)))
);

// Returns all entries, the newest first; none if this browser keeps nothing.
export const read = () => {
  let keys = [];
  try {
    keys = Object.keys(localStorage).filter((key) => key.startsWith(KEY));
  } catch {
    // this browser keeps nothing
  }
  return keys
    .map((key) => [key, kept.read("localStorage", key)])
    .filter(([key, entry]) => isEntry(entry) && key === KEY + entry.id)
    .map(([, entry]) => entry)
    .sort((one, other) => new Date(other.at) - new Date(one.at));
};
export const find = (id) => read().find((entry) => entry.id === id);
export const remove = ({ id }) => kept.write("localStorage", KEY + id, null);

// Keeps an entry. Removes the oldest ones if there are too many, or no room for it; never favourites.
export const write = (entry) => {
  const others = read().filter(({ id, favourite }) => id !== entry.id && !favourite);
  const most = entry.favourite ? MOST : MOST - 1;
  others.slice(most).forEach(remove);
  const left = others.slice(0, most);
  while (!kept.write("localStorage", KEY + entry.id, entry) && left.length) remove(left.pop());
};

export const hasRoomForFavourites = () => (
  read().filter(({ favourite }) => favourite).length < MOST_FAVOURITES
);

export const promptOf = ({ link }) => new URLSearchParams(link).get("prompt") ?? "";

// The places of the pictures of a request that were deleted, as the server reads them.
export const goneOf = (id) => String(find(id)?.gone ?? []);

// Ids of this visit's requests, the newest first.
const earlier = kept.read(...VISIT);
let visit = Array.isArray(earlier) ? earlier : [];
export const isOfVisit = ({ id }) => visit.includes(id);
export const addToVisit = (id) => {
  visit = [id, ...visit].slice(0, MOST);
  kept.write(...VISIT, visit);
};

const loaded = async (address) => {
  const image = new Image();
  image.crossOrigin = "anonymous"; // else a canvas with images of another origin cannot be read
  image.src = address;
  await image.decode();
  return image;
};

// Returns one image of pictures side by side, each a square of `[image, left, top, side]`.
const sideBySide = (squares) => {
  const canvas = make("canvas", { width: SIDE * squares.length, height: SIDE });
  const context = canvas.getContext("2d");
  for (const [i, [image, left, top, side]] of squares.entries()) {
    context.drawImage(image, left, top, side, side, i * SIDE, 0, SIDE, SIDE);
  }
  return canvas.toDataURL("image/jpeg", 0.8);
};

// Returns one image of all pictures side by side, each cut to a square.
export const look = async (addresses) => {
  const squares = [];
  for (const address of addresses) {
    const image = await loaded(address);
    const { naturalWidth: width, naturalHeight: height } = image;
    const side = Math.min(width, height);
    squares.push([image, (width - side) / 2, (height - side) / 2, side]);
  }
  return sideBySide(squares);
};

// Returns such an image without one of its pictures.
export const without = async (address, place) => {
  const image = await loaded(address);
  const count = Math.round(image.naturalWidth / image.naturalHeight);
  const left = Array.from({ length: count }, (_, i) => i).filter((i) => i !== place);
  return sideBySide(left.map((i) => [image, i * SIDE, 0, SIDE]));
};
