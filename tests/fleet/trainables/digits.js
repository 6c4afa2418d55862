// Trains as digits_softmax.py does. Usage: node digits.js LR FOLDER
const fs = require("fs"), net = require("net"), path = require("path"), env = process.env;
const lr = Number(process.argv[2]), folder = process.argv[3], classes = [...Array(10).keys()];
const rows = fs.readFileSync(path.join(folder, "digits.txt"), "utf8").trim().split("\n");
const data = rows.map((row) => row.split(" ").map(Number));
const digits = data.map((row) => row[0]), images = data.map((row) => [...row.slice(1), 1]);
const half = Math.floor(data.length / 2), from = env.STUDYDB_CHECKPOINT;
let step = Number(env.STUDYDB_STEP);
let weights = from
  ? JSON.parse(fs.readFileSync(path.join(from, "weights"), "utf8"))
  : images[0].map(() => classes.map(() => 0));
const scores = (image) =>
  classes.map((c) => image.reduce((sum, value, i) => sum + value * weights[i][c], 0));
const socket = net.connect(env.STUDYDB_SOCKET, train);
socket.on("data", (answer) => (JSON.parse(answer).go && step < 9 ? train() : socket.end()));

function train() {
  if (fs.existsSync(path.join(folder, `hold-${step + 1}`))) return setTimeout(train, 10);
  const gradient = weights.map(() => classes.map(() => 0));
  images.slice(0, half).forEach((image, m) => {
    const powers = scores(image).map(Math.exp), sum = powers.reduce((a, b) => a + b);
    classes.forEach((c) => {
      const slope = (powers[c] / sum - (c === digits[m])) / half;
      image.forEach((value, i) => (gradient[i][c] += slope * value));
    });
  });
  weights = weights.map((row, i) => row.map((weight, c) => weight - lr * gradient[i][c]));
  const misread = images.slice(half).filter((image, m) => {
    const found = scores(image);
    return found.indexOf(Math.max(...found)) !== digits[half + m];
  });
  fs.writeFileSync(path.join(env.STUDYDB_SAVE, "weights"), JSON.stringify(weights));
  const error = misread.length / (data.length - half);
  socket.write(JSON.stringify({ step: ++step, error, checkpoint: true }) + "\n");
}
