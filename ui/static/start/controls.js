// Controls as a text, such as "canny:scale=0.8:preprocessor=canny", as `pipeline/text/controls.py` reads
// it. Nothing here knows of a document.

const DEFAULTS = { scale: 1, end: 1 };
const OF_MAP = ["type", "preprocessor", "resolution", "threshold_a", "threshold_b", "resize_mode"];

// Returns the name and the values of the one control in a text; null for none, or several.
export const read = (text) => {
  if (text === "" || text.includes(",")) return null;
  const [name, ...items] = text.split(":");
  return { name, values: Object.fromEntries(items.map((item) => item.split("="))) };
};
const write = (name, values) => {
  const items = Object.entries(values).filter(([key, value]) => Number(value) !== DEFAULTS[key]);
  return [name, ...items.map((item) => item.join("="))].join(":");
};

// Returns a number of the one control in a text: "scale" or "end".
export const numberOf = (text, key) => Number(read(text)?.values[key] ?? DEFAULTS[key]);

export const withNumber = (text, key, number) => {
  const { name, values } = read(text);
  return write(name, { ...values, [key]: number });
};

// Returns the text of a control with the numbers of the one before it, if there was one.
export const withNumbersOf = (before, text) => (
  Object.keys(DEFAULTS).reduce((next, key) => withNumber(next, key, numberOf(before, key)), text));

// Returns the part of a text that decides which network follows which map; equal for equal ones.
export const mapOf = (text) => {
  const control = read(text);
  if (!control) return text;
  const { name, values } = control;
  return [name, ...OF_MAP.map((key) => values[key] ?? "")].join(":");
};
