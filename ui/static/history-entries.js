// This browser's own requests: kept in its storage, and sent nowhere. The tab keeps which of them
// are of this visit.
const KEY = "sdxl-history";
const VISIT_KEY = "sdxl-visit";
const MOST = 30;
const SIDE = 96; // of a thumbnail, in pixels

// The storage may hold anything: other versions of this page, or pages of its origin, write it.
const isEntry = (entry) => (
  ["id", "link", "said"].every((name) => typeof entry?.[name] === "string")
  && Number.isFinite(new Date(entry.at).getTime())
  && ["string", "undefined"].includes(typeof entry.look)
);

// Returns the list that a storage holds under a key, or an empty one.
const listIn = (storage, key) => {
  try {
    const kept = JSON.parse(window[storage].getItem(key));
    return Array.isArray(kept) ? kept : [];
  } catch {
    return []; // nothing was kept, or this browser keeps nothing
  }
};

// Keeps the newest entries of a list. Drops the oldest if there are too many, or no room for them.
const keep = (storage, key, list) => {
  for (let kept = list.slice(0, MOST); ; kept = kept.slice(0, -1)) {
    try {
      window[storage].setItem(key, JSON.stringify(kept));
      return;
    } catch {
      if (!kept.length) return;
    }
  }
};

const read = () => listIn("localStorage", KEY).filter(isEntry);
const write = (entries) => {
  keep("localStorage", KEY, entries);
  show();
};

let visit = listIn("sessionStorage", VISIT_KEY); // ids of this visit's requests, the newest first
const isOfVisit = ({ id }) => visit.includes(id);
const addToVisit = (id) => {
  visit = [id, ...visit];
  keep("sessionStorage", VISIT_KEY, visit);
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
