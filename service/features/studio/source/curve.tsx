// Numbers as a line, from the left to the right.

export function Curve({ points, most }: { points: number[]; most: number }) {
  const last = Math.max(points.length - 1, 1);
  const path = points.map((value, at) =>
    `${((100 * at) / last).toFixed(1)},${(31 - (30 * Math.max(value, 0)) / most).toFixed(1)}`).join(" ");
  return <svg class="curve" viewBox="0 0 100 32" preserveAspectRatio="none" aria-hidden="true">
    <polyline points={path} fill="none" stroke="currentColor" vector-effect="non-scaling-stroke" />
  </svg>;
}
