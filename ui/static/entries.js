// This browser's own requests: kept in its storage, and sent nowhere. The tab keeps which of them are of
// this visit.
import { kept, make } from "./app.js";

// Each entry has a key of its own. Other tabs' changes arrive a moment late, so a tab that wrote all
// entries together would lose those that another one adds at the same time.
const KEY = "sdxl-history ";
const VISIT = ["sessionStorage", "sdxl-visit"];
const MOST = 30;
const SIDE = 96; // of a thumbnail, in pixels

// The storage may hold anything: other versions of this page, or pages of its origin, write it.
export const isEntry = (entry) => (
  ["id", "link", "said"].every((name) => typeof entry?.[name] === "string")
  && Number.isFinite(new Date(entry.at).getTime())
  && ["string", "undefined"].includes(typeof entry.look)
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

// Keeps an entry. Removes the oldest ones if there are too many, or no room for it.
export const write = (entry) => {
  const others = read().filter(({ id }) => id !== entry.id);
  others.slice(MOST - 1).forEach(remove);
  const left = others.slice(0, MOST - 1);
  while (!kept.write("localStorage", KEY + entry.id, entry) && left.length) remove(left.pop());
};

// Ids of this visit's requests, the newest first.
const earlier = kept.read(...VISIT);
let visit = Array.isArray(earlier) ? earlier : [];
export const isOfVisit = ({ id }) => visit.includes(id);
export const addToVisit = (id) => {
  visit = [id, ...visit].slice(0, MOST);
  kept.write(...VISIT, visit);
};

// Returns one image of all pictures side by side, each cut to a square.
export const look = async (addresses) => {
  const canvas = make("canvas", { width: SIDE * addresses.length, height: SIDE });
  for (const [i, address] of addresses.entries()) {
    const image = new Image();
    image.crossOrigin = "anonymous"; // else a canvas with images of another origin cannot be read
    image.src = address;
    await image.decode();
    const { naturalWidth: width, naturalHeight: height } = image;
    const side = Math.min(width, height);
    canvas.getContext("2d").drawImage(
      image, (width - side) / 2, (height - side) / 2, side, side, i * SIDE, 0, SIDE, SIDE);
  }
  return canvas.toDataURL("image/jpeg", 0.8);
};
