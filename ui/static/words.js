// Which parts of a prompt a model ignores. Nothing here knows of a document.

// Words and signs, as `pipeline/text/unknown_words.py` finds them.
const LETTER = "\\p{L}\\p{N}";
const MARK = "\\p{M}\\u{1F3FB}-\\u{1F3FF}\\u{E0020}-\\u{E007F}";
const JOINER = "\\u200C\\u200D";
const RUN = `[${LETTER}][${LETTER}${MARK}${JOINER}]*`;
const SIGN = "(?![\\0-\\u218F])[\\p{So}\\p{Cn}]";
const WORD = new RegExp(
  `${RUN}(?:[-'’_]${RUN})*|\\p{RI}{1,2}|${SIGN}(?:[${MARK}]|[${JOINER}]+${SIGN})*`, "gu");

const folded = (word) => word.normalize("NFC").toLowerCase();
const isSpace = (character) => /\s/.test(character);
// A token may be a part of a character, which is then written as U+FFFD.
const squeezed = (text) => text.replace(/\s+/g, "").replace(/^\uFFFD+/, "").toLowerCase();

// Returns where the end of a text begins that is left out, and the length of the text if nothing is. The
// tokens of the end were written anew: only their spaces may differ.
const endOf = (text, leftOut) => {
  let at = text.length;
  let left = leftOut.length;
  while (left > 0) {
    at--;
    if (at < 0) return text.length;
    if (isSpace(text[at])) continue;
    left--;
    if (text[at].toLowerCase() !== leftOut[left]) return text.length;
  }
  return at;
};

// Tags of LoRAs are no part of the end that is left out.
const TAG = /<[\p{L}\p{N}_]+:[^<>]+>/gu;
const blank = (part) => " ".repeat(part.length);

// Returns a pattern of parts, such as a tag or a comment. One that begins with a letter is a word.
const patternOf = (parts) => {
  const patterns = [...parts].sort((a, b) => b.length - a.length).map((part) => {
    const pattern = part.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
    return /^\p{L}/u.test(part) ? `(?<![${LETTER}_])${pattern}(?![${LETTER}_])` : pattern;
  });
  return new RegExp(patterns.join("|") || "(?!)", "gu");
};

// Returns the parts of a text that are ignored, each as its first place and the one after its last.
//
// `words` are unknown, `without` are parts without effect, and `leftOut` is the end that the model does not
// read, of a text that may have had other words `added` after it.
export const ignored = (text, { words = [], without = [], leftOut = "", added = "" }) => {
  const [end, after] = [leftOut, added].map(squeezed);
  const own = end.endsWith(after) ? end.slice(0, end.length - after.length) : "";
  const pattern = patternOf(new Set(without));
  const rest = text.replace(pattern, blank);
  const from = endOf(rest.replace(TAG, blank), own);
  const unknown = new Set(words.map(folded));
  const matches = [...text.matchAll(pattern)];
  for (const match of unknown.size ? rest.matchAll(WORD) : []) {
    if (unknown.has(folded(match[0]))) matches.push(match);
  }
  const places = matches.map(({ 0: part, index }) => [index, index + part.length]);
  const parts = places.filter(([, to]) => to <= from).sort(([a], [b]) => a - b);
  if (from < text.length) parts.push([from, text.length]);
  return parts;
};
