// How much of a picture is seen: magnified `scale` times, and moved by `x` and `y` pixels from the
// middle. Nothing here knows of a document.
export const WHOLE = { scale: 1, x: 0, y: 0 };
const MOST = 8;

const within = (value, most) => Math.min(Math.max(value, -most), most);

// Keeps the picture over the window; `width` and `height` are those of the whole picture's part in it.
export const bounded = ({ scale, x, y }, { width, height }) => ({
  scale,
  x: within(x, (width * (scale - 1)) / 2),
  y: within(y, (height * (scale - 1)) / 2),
});

// Magnifies around a point, which is given from the middle of the window and stays where it is.
export const zoomed = (view, factor, point, box) => {
  const scale = Math.min(Math.max(view.scale * factor, 1), MOST);
  const grown = scale / view.scale;
  return bounded({
    scale,
    x: point.x - (point.x - view.x) * grown,
    y: point.y - (point.y - view.y) * grown,
  }, box);
};

export const moved = (view, dx, dy, box) => bounded({ ...view, x: view.x + dx, y: view.y + dy }, box);

// Returns 1 for the next picture, -1 for the one before, and 0 if the movement is no swipe.
export const swiped = (dx, dy) => (Math.abs(dx) > 50 && Math.abs(dx) > 2 * Math.abs(dy) ? -Math.sign(dx) : 0);
