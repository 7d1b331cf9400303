// This browser's own requests: kept in its storage, and sent nowhere. The tab keeps which of them
// are of this visit.
// Each entry has a key of its own. Other tabs' changes arrive a moment late, so a tab that wrote all
// entries together would lose those that another one adds at the same time.
const KEY = "sdxl-history ";
const VISIT_KEY = "sdxl-visit";
const MOST = 30;
const SIDE = 96; // of a thumbnail, in pixels

const parsed = (text) => {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
};

// The storage may hold anything: other versions of this page, or pages of its origin, write it.
const isEntry = (entry) => (
  ["id", "link", "said"].every((name) => typeof entry?.[name] === "string")
  && Number.isFinite(new Date(entry.at).getTime())
  && ["string", "undefined"].includes(typeof entry.look)
);

// Returns all entries, the newest first; none if this browser keeps nothing.
const read = () => {
  try {
    return Object.entries(localStorage)
      .filter(([key]) => key.startsWith(KEY))
      .map(([key, text]) => [key, parsed(text)])
      .filter(([key, entry]) => isEntry(entry) && key === KEY + entry.id)
      .map(([, entry]) => entry)
      .sort((one, other) => new Date(other.at) - new Date(one.at));
  } catch {
    return [];
  }
};
const remove = ({ id }) => localStorage.removeItem(KEY + id);

// Keeps an entry. Removes the oldest ones if there are too many, or no room for it.
const write = (entry) => {
  const others = read().filter(({ id }) => id !== entry.id);
  others.slice(MOST - 1).forEach(remove);
  for (const left = others.slice(0, MOST - 1); ; remove(left.pop())) {
    try {
      localStorage.setItem(KEY + entry.id, JSON.stringify(entry));
      return;
    } catch {
      if (!left.length) return;
    }
  }
};

// Ids of this visit's requests, the newest first.
const keptVisit = () => {
  try {
    const kept = parsed(sessionStorage.getItem(VISIT_KEY));
    return Array.isArray(kept) ? kept : [];
  } catch {
    return []; // this browser keeps nothing
  }
};
let visit = keptVisit();
const isOfVisit = ({ id }) => visit.includes(id);
const addToVisit = (id) => {
  visit = [id, ...visit].slice(0, MOST);
  try {
    sessionStorage.setItem(VISIT_KEY, JSON.stringify(visit));
  } catch {
    // the storage is full or closed to this page
  }
};

// Returns one image of all pictures side by side, each cut to a square.
const look = async (addresses) => {
  const canvas = document.createElement("canvas");
  canvas.width = SIDE * addresses.length;
  canvas.height = SIDE;
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
