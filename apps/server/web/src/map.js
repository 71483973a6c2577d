// Layers x experts. State of each: 0 absent, 1 in flight, 2 resident; heat is use since the last look, fading.
const canvas = document.getElementById("map"), cellText = document.getElementById("cell");
let layers = [], uses = [], heat = [], cursor = null;

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  return ["--absent", "--flight", "--resident", "--hot"].map((name) => style.getPropertyValue(name).trim());
};
function mix(a, b, t) {
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.length === 4 ? hex[(i + 1) / 2].repeat(2) : hex.slice(i, i + 2), 16));
  const [x, y] = [rgb(a), rgb(b)];
  return `rgb(${x.map((v, i) => Math.round(v + (y[i] - v) * t)).join(" ")})`;
}

export function showMap(data) {
  layers = data.layers;
  heat = layers.map((layer, l) => layer.uses.map((n, e) => {
    const before = uses[l]?.[e] ?? n;
    return 0.6 * (heat[l]?.[e] ?? 0) + Math.max(0, n - before);
  }));
  uses = layers.map((layer) => layer.uses);
  draw();
}

function draw() {
  const rows = layers.length, columns = Math.max(0, ...layers.map((l) => l.uses.length));
  if (!rows || !columns) return;
  const size = Math.max(2, Math.min(24, Math.floor(960 / columns)));
  canvas.width = columns * size;
  canvas.height = rows * size;
  canvas.style.maxHeight = "60vh";
  const context = canvas.getContext("2d"), [absent, flight, resident, hot] = colours();
  const most = Math.max(1, ...heat.flat());
  layers.forEach((layer, l) => layer.uses.forEach((_, e) => {
    const state = layer.state.charCodeAt(e) - 48;
    const warm = Math.sqrt((heat[l][e] ?? 0) / most);
    context.fillStyle = state === 1 ? flight : mix(state === 2 ? resident : absent, hot, state === 2 ? warm : warm / 2);
    context.fillRect(e * size, l * size, size - (size > 4), size - (size > 4));
  }));
  if (cursor) {
    context.strokeStyle = getComputedStyle(document.body).color;
    context.lineWidth = 2;
    context.strokeRect(cursor.e * size, cursor.l * size, size, size);
  }
}

function name(l, e) {
  l = Math.max(0, Math.min(layers.length - 1, l));
  if (!layers.length) return;
  e = Math.max(0, Math.min(layers[l].uses.length - 1, e));
  cursor = {l, e};
  const state = ["on disk", "in flight", "near"][layers[l].state.charCodeAt(e) - 48];
  cellText.textContent = `Layer ${layers[l].layer}, expert ${e}: ${state}, used by ${layers[l].uses[e]} tokens`;
  draw();
}

canvas.addEventListener("keydown", (event) => {
  const step = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
  if (!step) return;
  event.preventDefault();
  name((cursor?.l ?? 0) + (cursor ? step[0] : 0), (cursor?.e ?? 0) + (cursor ? step[1] : 0));
});
canvas.addEventListener("pointerdown", (event) => {
  const box = canvas.getBoundingClientRect(), columns = Math.max(...layers.map((l) => l.uses.length));
  name(Math.floor((event.clientY - box.top) / box.height * layers.length), Math.floor((event.clientX - box.left) / box.width * columns));
});
