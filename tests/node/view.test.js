import assert from "node:assert/strict";
import test from "node:test";
import { WHOLE, moved, swiped, zoomed } from "../../ui/static/view.js";

const BOX = { width: 800, height: 600 };

test("the point under the pointer stays where it is", () => {
  const before = { scale: 2, x: 10, y: -20 };
  const point = { x: 100, y: 50 };
  const after = zoomed(before, 1.5, point, BOX);
  assert.equal(after.scale, 3);
  // The point of the picture that is at `point`, in pixels of the whole picture from its middle.
  const under = ({ scale, x, y }) => [(point.x - x) / scale, (point.y - y) / scale];
  assert.deepEqual(under(after), under(before));
});

test("a picture is never smaller than the whole, nor larger than eight times that", () => {
  assert.deepEqual(zoomed(WHOLE, 0.5, { x: 100, y: 0 }, BOX), WHOLE);
  assert.equal(zoomed({ ...WHOLE, scale: 7 }, 2, { x: 0, y: 0 }, BOX).scale, 8);
});

test("a picture cannot be moved out of its place", () => {
  assert.deepEqual(moved({ scale: 2, x: 0, y: 0 }, 9000, -9000, BOX), { scale: 2, x: 400, y: -300 });
  assert.deepEqual(moved(WHOLE, 5, 5, BOX), WHOLE);
});

test("a swipe is long and level", () => {
  assert.equal(swiped(-120, 20), 1);
  assert.equal(swiped(120, -20), -1);
  assert.equal(swiped(-30, 0), 0);
  assert.equal(swiped(-120, 100), 0);
});
