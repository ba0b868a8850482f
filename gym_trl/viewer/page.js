"use strict";
// All content of a run is inserted with textContent only; the page's policy (require-trusted-types-for) makes browsers
// reject any other way.
(() => {
  const root = document.documentElement;
  const main = document.getElementById("main");
  const tip = document.getElementById("tip");
  const help = document.getElementById("help");
  const ROW = 34;
  const OVERSCAN = 8;
  const CACHED = 12; // maximum number of decoded chunks
  const SVG = "http://www.w3.org/2000/svg";
  const REASONS = ["STOP_REASONS"]; // page.py inserts the names

  let about = { name: "", options: {}, versions: {}, summary: {}, levels: {}, players: [], broken: 0 };
  let columns = {};
  let metrics = [];
  let total = 0;
  const view = { name: "", rows: [], at: 0, query: "", sort: "", descending: false, found: null, episode: -1 };

  // ------------------------------------------------------------------------------------------------------- elements

  /** Return an element with properties and children; strings become text. */
  function h(tag, properties, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "class") element.className = value;
      else if (name === "text") element.textContent = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  }

  function s(tag, attributes, text) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  const hue = (stop) => (REASONS.includes(stop) ? `hue-${stop}` : "");
  const hueOf = (i) => (columns.ended[i] === "ended" && columns.success[i] === false ? "hue-failed" : hue(columns.ended[i]));
  const words = (name) => String(name).replaceAll("_", " ");
  const filtered = (query) => `#/episodes?${new URLSearchParams({ q: query })}`;
  const count = (number) => number.toLocaleString("en");
  const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

  function show(number, digits = 3) {
    if (!isNumber(number)) return "–";
    if (Number.isInteger(number) && Math.abs(number) < 1e6) return count(number).replace("-", "−");
    const size = Math.abs(number);
    if (size >= 1e6 && size < 1e12) return `${Number((number / 1e6).toPrecision(digits))} M`.replace("-", "−");
    if (size !== 0 && (size >= 1e12 || size < 1e-3)) return number.toExponential(1).replace("-", "−");
    return String(Number(size >= 100 ? number.toFixed(1) : number.toPrecision(digits))).replace("-", "−");
  }

  /** Return a share of episodes, and the interval of an estimate [mean, low, high] if it has one. */
  const rate = (share) => (isNumber(share) ? share.toFixed(3).replace("-", "−") : "–");
  const interval = ([, low, high]) => (isNumber(low) ? `[${rate(low)}, ${rate(high)}]` : "");
  const estimate = (values) => [rate(values[0]), interval(values)].filter(Boolean).join(" ");

  const signed = (number) => (isNumber(number) && number > 0 ? `+${show(number)}` : show(number));
  const sign = (number) => (!isNumber(number) ? "none" : number > 0 ? "pos" : number < 0 ? "neg" : "");

  function duration(seconds) {
    if (!isNumber(seconds)) return "–";
    const minutes = Math.floor(seconds / 60);
    if (minutes < 1) return `${seconds.toFixed(0)} s`;
    return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  }

  function mean(values) {
    let sum = 0;
    let known = 0;
    for (const value of values) {
      if (isNumber(value)) {
        sum += value;
        known += 1;
      }
    }
    return known ? sum / known : null;
  }

  // ----------------------------------------------------------------------------------------------------------- data

  async function unpack(base64) {
    const bytes = Uint8Array.fromBase64
      ? Uint8Array.fromBase64(base64)
      : Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  let firsts = []; // first episode of each chunk
  const cache = new Map(); // chunk number -> promise of its episodes, most recently used last
  let decoded = 0;

  function remember(key, make) {
    const known = cache.get(key) || make();
    cache.delete(key);
    cache.set(key, known);
    while (cache.size > CACHED) cache.delete(cache.keys().next().value);
    return known;
  }

  /** Return the number of an episode's chunk, and the episode's place in it. */
  function place(episode) {
    let low = 0;
    let high = firsts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (firsts[middle] <= episode) low = middle;
      else high = middle - 1;
    }
    return [low, episode - firsts[low]];
  }

  function chunk(number, kind = "chunk") {
    return remember(`${kind}-${number}`, () => {
      decoded += 1;
      root.dataset.decoded = decoded;
      return unpack(document.getElementById(`${kind}-${number}`).textContent);
    });
  }

  /** Return the messages and tokens of an episode. */
  async function body(episode) {
    const [number, offset] = place(episode);
    const [said, tokens] = await Promise.all([chunk(number), chunk(number, "tokens")]);
    return { ...said[offset], tokens: tokens[offset] };
  }

  let shared = null;
  let groups = null;
  let tasks = null;
  const groupKey = (i) =>
    `${columns.same[i]}|${columns.step[i]}|${columns.split[i]}|${columns.policy[i]}|${columns.group[i] ?? ""}`;

  function gather(key) {
    const found = new Map();
    for (let i = 0; i < total; i += 1) {
      const name = key(i);
      if (found.has(name)) found.get(name).push(i);
      else found.set(name, [i]);
    }
    return found;
  }

  const membersOf = (i) => (groups ||= gather(groupKey)).get(groupKey(i));
  const sameTask = (i) => (tasks ||= gather((j) => columns.same[j])).get(columns.same[i]);

  const isSeat = (i) => isNumber(columns.seat[i]);
  const seatName = (i) => `seat ${columns.seat[i]}`;

  async function open() {
    const index = await unpack(document.getElementById("index").textContent);
    ({ about, columns, metrics } = index);
    firsts = index.chunks;
    total = columns.step.length;
    document.getElementById("name").textContent = about.name;
    document.getElementById("env").textContent = about.options.env || columns.env[0] || "";
    document.getElementById("total").textContent = count(total);
    document.title = `${about.name} · gym-trl`;
    root.dataset.episodes = total;
  }

  // --------------------------------------------------------------------------------------------------------- charts

  const hovers = new Set();

  function ticks(low, high, wanted) {
    const span = high - low || 1;
    const power = 10 ** Math.floor(Math.log10(span / wanted));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => span / one <= wanted) || power * 10;
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) {
      found.push(Math.abs(at) < step * 1e-6 ? 0 : Number(at.toPrecision(10)));
    }
    return found;
  }

  /** Return the moving average, with a window of a twentieth of the length. */
  function smooth(values) {
    const reach = Math.floor(values.length / 40);
    const sums = [0];
    for (const value of values) sums.push(sums[sums.length - 1] + value);
    return values.map((_, i) => {
      const from = Math.max(0, i - reach);
      const to = Math.min(values.length, i + reach + 1);
      return (sums[to] - sums[from]) / (to - from);
    });
  }

  /** Return an SVG path with at most two points per pixel. */
  function path(xs, ys, x, y, width) {
    const every = Math.max(1, Math.floor(xs.length / (2 * width)));
    let line = "";
    for (let i = 0; i < xs.length; i += every) {
      let at = i;
      for (let j = i; j < Math.min(i + every, xs.length); j += 1) {
        if ((i / every) % 2 ? ys[j] > ys[at] : ys[j] < ys[at]) at = j;
      }
      line += `${line ? "L" : "M"}${x(xs[at]).toFixed(1)} ${y(ys[at]).toFixed(1)}`;
    }
    return line;
  }

  /** Return a panel whose chart is drawn for its current width. */
  function panel(title, note, now, draw) {
    const svg = s("svg", { class: "chart", role: "img", "aria-label": title });
    const box = h("section", { class: "panel" },
      h("h2", {}, title, note && h("small", { text: note }), now && h("span", { class: "now", text: now })), svg);
    let drawn = 0;
    new ResizeObserver(() => {
      const width = Math.floor(svg.clientWidth);
      if (!width || width === drawn) return;
      drawn = width;
      svg.replaceChildren();
      svg.setAttribute("viewBox", `0 0 ${width} ${svg.clientHeight}`);
      draw(svg, width, svg.clientHeight);
    }).observe(svg);
    return box;
  }

  const EDGE = { left: 48, right: 22, top: 14, bottom: 24 };

  /** Return labels of ticks with as many digits as are needed to distinguish them. */
  function named(found) {
    const step = found.length > 1 ? found[1] - found[0] : 1;
    if (found.some((at) => Math.abs(at) >= 1e4) || step < 1e-4) return show;
    return (at) => at.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9))).replace("-", "−");
  }

  function axes(svg, width, height, [x0, x1], [y0, y1], yName = null, whole = false) {
    const x = (value) => EDGE.left + ((value - x0) / (x1 - x0 || 1)) * (width - EDGE.left - EDGE.right);
    const y = (value) => height - EDGE.bottom - ((value - y0) / (y1 - y0 || 1)) * (height - EDGE.top - EDGE.bottom);
    const heights = ticks(y0, y1, height < 150 ? 3 : 4);
    const name = yName || named(heights);
    for (const at of heights) {
      svg.append(s("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(at), y2: y(at) }));
      svg.append(s("text", { x: EDGE.left - 8, y: y(at) + 4, "text-anchor": "end" }, name(at)));
    }
    for (const at of ticks(x0, x1, Math.max(2, Math.floor(width / 90)))) {
      if (whole && !Number.isInteger(at)) continue;
      svg.append(s("text", { x: x(at), y: height - 7, "text-anchor": "middle" }, show(at)));
    }
    return [x, y];
  }

  /** Highlight the same step in all charts. */
  function pointed(svg, xs, x, height, told) {
    const cross = s("line", { class: "cross", y1: EDGE.top, y2: height - EDGE.bottom, visibility: "hidden" });
    svg.append(cross);
    const nearest = (value) => {
      let low = 0;
      let high = xs.length - 1;
      while (high - low > 1) {
        const middle = (low + high) >> 1;
        if (xs[middle] < value) low = middle;
        else high = middle;
      }
      return Math.abs(xs[low] - value) <= Math.abs(xs[high] - value) ? low : high;
    };
    hovers.add((step) => {
      cross.setAttribute("visibility", step === null ? "hidden" : "visible");
      if (step === null) return;
      cross.setAttribute("x1", x(step));
      cross.setAttribute("x2", x(step));
    });
    const at = (event) => {
      const box = svg.getBoundingClientRect();
      const [first, last] = [xs[0], xs[xs.length - 1]];
      const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
      return nearest(first + share * (last - first));
    };
    svg.addEventListener("pointermove", (event) => {
      const i = at(event);
      for (const hover of hovers) hover(xs[i]);
      pop(event, [h("b", { text: `step ${show(xs[i])}` }), ...told(i)]);
    });
    svg.addEventListener("pointerleave", () => {
      for (const hover of hovers) hover(null);
      tip.hidden = true;
    });
  }

  const pair = (name, value) => h("div", {}, h("span", { text: name }), h("b", { text: value }));

  /** Return positions at least \`gap\` apart that are close to the wanted ones, in the same order. */
  function spread(wanted, gap, low, high) {
    const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]);
    const placed = [...wanted];
    let floor = low;
    for (const i of order) {
      placed[i] = Math.max(wanted[i], floor);
      floor = placed[i] + gap;
    }
    let ceiling = high;
    for (const i of order.reverse()) {
      placed[i] = Math.min(placed[i], ceiling);
      ceiling = placed[i] - gap;
    }
    return placed;
  }

  function lineChart(title, note, xs, ys, levels = [], bounds = null, band = null) {
    const smoothed = smooth(ys);
    const now = smoothed.length ? show(smoothed[smoothed.length - 1]) : "";
    return panel(title, note, now, (svg, width, height) => {
      const heights = [...levels.map(([, level]) => level), ...bounds || []];
      let [low, high] = [Math.min(...heights, ...ys), Math.max(...heights, ...ys)];
      if (!bounds) [low, high] = [low - (high - low) * 0.06, high + (high - low) * 0.06];
      if (low === high) [low, high] = [low - 0.5, high + 0.5];
      const [x, y] = axes(svg, width, height, [xs[0], xs[xs.length - 1]], [low, high]);
      const texts = spread(levels.map(([, level]) => y(level) + (y(level) < EDGE.top + 14 ? 13 : -4)), 13, EDGE.top + 10, height - EDGE.bottom);
      for (const [name, level] of levels) svg.append(s("line", { class: `level ${name}`, x1: EDGE.left, x2: width - EDGE.right, y1: y(level), y2: y(level) }));
      levels.forEach(([name, level], n) => {
        svg.append(s("text", { class: name, x: width - EDGE.right - 6, y: texts[n], "text-anchor": "end" }, `${name} ${show(level)}`));
      });
      if (band) {
        const back = path([...xs].reverse(), band.map(([, low]) => low).reverse(), x, y, width).replace("M", "L");
        svg.append(s("path", { class: "band", d: `${path(xs, band.map(([, , high]) => high), x, y, width)}${back}Z` }));
      }
      svg.append(s("path", { class: "raw", d: path(xs, ys, x, y, width) }));
      svg.append(s("path", { class: "smooth", d: path(xs, smoothed, x, y, width) }));
      if (xs.length < 12) xs.forEach((at, i) => svg.append(s("circle", { class: "dot", cx: x(at), cy: y(ys[i]), r: 3 })));
      pointed(svg, xs, x, height, (i) => [
        pair(title.toLowerCase(), show(ys[i])), band && pair("95% interval", interval(band[i])), pair("smoothed", show(smoothed[i])),
      ].filter(Boolean));
    });
  }

  function stackChart(title, note, xs, shares) {
    const names = Object.keys(shares).filter((name) => shares[name].some((value) => value > 0));
    names.sort((a, b) => REASONS.indexOf(a) - REASONS.indexOf(b));
    const smoothed = Object.fromEntries(names.map((name) => [name, smooth(shares[name])]));
    const box = panel(title, note, "", (svg, width, height) => {
      const [x, y] = axes(svg, width, height, [xs[0], xs[xs.length - 1]], [0, 1], (at) => `${Math.round(at * 100)} %`);
      let floor = xs.map(() => 0);
      for (const name of names) {
        const top = floor.map((value, i) => value + smoothed[name][i]);
        const back = path([...xs].reverse(), [...floor].reverse(), x, y, width).replace("M", "L");
        svg.append(s("path", { class: `area ${hue(name)}`, d: `${path(xs, top, x, y, width)}${back}Z` }));
        floor = top;
      }
      pointed(svg, xs, x, height, (i) => names.map((name) => pair(name, `${(shares[name][i] * 100).toFixed(0)} %`)));
    });
    box.append(h("div", { class: "legend" },
      names.map((name) => h("a", { href: filtered(name) }, h("i", { class: hue(name) }), name))));
    return box;
  }

  function histogram(title, values) {
    const known = values.filter(isNumber);
    let [low, high] = [Infinity, -Infinity];
    for (const value of known) [low, high] = [Math.min(low, value), Math.max(high, value)];
    const whole = known.every(Number.isInteger) && high - low < 40;
    const bins = whole ? high - low + 1 : 24;
    const size = whole ? 1 : (high - low) / bins || 1;
    const heights = new Array(bins).fill(0);
    for (const value of known) heights[Math.min(bins - 1, Math.floor((value - low) / size))] += 1;
    return panel(title, `of ${plural(known.length, "episode")}`, `mean ${show(mean(known))}`, (svg, width, height) => {
      if (!known.length) return;
      const tallest = Math.max(...heights);
      const half = whole ? 0.5 : 0;
      const [x, y] = axes(svg, width, height, [low - half, low - half + bins * size], [0, tallest], null, whole);
      heights.forEach((tall, i) => {
        const [from, to] = [low - half + i * size, low - half + (i + 1) * size];
        const wide = Math.min(56, Math.max(1, x(to) - x(from) - 2));
        const bar = s("rect", { class: "bar", x: (x(from) + x(to) - wide) / 2, width: wide, y: y(tall), height: y(0) - y(tall), rx: 2 });
        svg.append(bar);
        bar.addEventListener("pointermove", (event) =>
          pop(event, [pair(whole ? show(from + half) : `${show(from)} to ${show(to)}`, plural(tall, "episode"))]));
        bar.addEventListener("pointerleave", () => { tip.hidden = true; });
      });
    });
  }

  function stopBars() {
    const counts = tally(columns.ended);
    const names = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
    const tallest = Math.max(1, ...counts.values());
    return h("section", { class: "panel" }, h("h2", {}, "Ended"),
      h("table", { class: "plain" }, h("tbody", {}, names.map((name) => {
        const bar = h("span", { class: `dot-of ${hue(name)}` });
        bar.style.width = `${Math.max(2, 140 * counts.get(name) / tallest)}px`;
        return h("tr", {}, h("td", {}, bar, h("a", { href: filtered(name), text: name || "–" })), h("td", { text: count(counts.get(name)) }),
          h("td", { text: `${(100 * counts.get(name) / total).toFixed(1)} %` }));
      }))));
  }

  function tally(values) {
    const counts = new Map();
    for (const value of values) counts.set(value, (counts.get(value) || 0) + 1);
    return counts;
  }

  // --------------------------------------------------------------------------------------------------------- curves

  /** Return the logged points of a metric. */
  function logged(name) {
    const rows = metrics.filter((row) => isNumber(row[name]) && isNumber(row.step));
    return [rows.map((row) => row.step), rows.map((row) => row[name])];
  }

  /** Return the estimate of each step's success, if all have one. */
  function banded(count) {
    const rows = metrics.filter((row) => isNumber(row["success/low"]) && isNumber(row.step));
    return rows.length === count ? rows.map((row) => [row["env/success"], row["success/low"], row["success/high"]]) : null;
  }

  /** Return the means of a column over the episodes of each step, for metrics that were not logged. */
  function stepped(value) {
    const sums = new Map();
    for (let i = 0; i < total; i += 1) {
      const got = value(i);
      if (!isNumber(columns.step[i]) || !isNumber(got)) continue;
      const sum = sums.get(columns.step[i]) || [0, 0];
      sums.set(columns.step[i], [sum[0] + got, sum[1] + 1]);
    }
    const steps = [...sums.keys()].sort((a, b) => a - b);
    return [steps, steps.map((step) => sums.get(step)[0] / sums.get(step)[1])];
  }

  const MAIN = [
    ["Return", "env/return", (i) => columns.return[i]],
    ["Success", "env/success", (i) => (columns.return[i] === null || columns.success[i] === null ? null : Number(columns.success[i]))],
    ["Turns", "env/turns", (i) => columns.turns[i]],
    ["Tokens", "completions/mean_length", (i) => columns.tokens[i]],
    ["Invalid", "env/invalid_actions", (i) => columns.invalid[i]],
  ];

  function curves() {
    view.name = "curves";
    hovers.clear();
    const box = h("div", { class: "curves" }, facts());
    const charts = h("div", { class: "charts" });
    const steps = new Set(columns.step.filter(isNumber));
    const trained = metrics.length > 0;
    for (const [title, metric, value] of MAIN) {
      const level = ["optimum", "blind", "random"].map((name) => [name, ((about.levels[name] || {})[title.toLowerCase()] || [])[0]]);
      let [xs, ys] = logged(metric);
      const note = xs.length ? metric : "mean of the episodes kept";
      if (!xs.length && (trained || steps.size > 1)) [xs, ys] = stepped(value);
      const share = title === "Success";
      const band = share && note === metric && banded(xs.length);
      const size = band ? `${metric} · ${plural(about.episodes_per_step, "episode")} a step, 95% interval` : note;
      if (xs.length) charts.append(lineChart(title, size, xs, ys, level.filter(([, at]) => isNumber(at)), share ? [0, 1] : null, band));
      else if (title !== "Success" && columns[title.toLowerCase()].some(isNumber)) charts.append(histogram(title, columns[title.toLowerCase()]));
    }
    const shares = Object.create(null);
    let xs = [];
    for (const name of metrics.length ? Object.keys(metrics[metrics.length - 1]) : []) {
      if (name.startsWith("env/stop/")) [xs, shares[name.slice(9)]] = logged(name);
    }
    if (xs.length) {
      const same = Object.fromEntries(Object.entries(shares).filter(([, values]) => values.length === xs.length));
      charts.append(stackChart("Ended", "env/stop/…", xs, same));
    } else if (trained || steps.size > 1) {
      const found = Object.create(null);
      for (const stop of new Set(columns.ended)) [xs, found[stop]] = stepped((i) => Number(columns.ended[i] === stop));
      if (xs.length) charts.append(stackChart("Ended", "share of the episodes kept", xs, found));
    } else if (total) charts.append(stopBars());
    const trainedLevels = about.levels.before || about.levels.after;
    if (trainedLevels) charts.prepend(scores());
    box.append(trainedLevels ? "" : byPlayer(), charts, others());
    main.replaceChildren(box);
  }

  function fact(label, value, note) {
    const shown = h("b", {});
    value.split(" → ").forEach((part, i) => shown.append(i ? h("i", { text: " → " }) : "", part));
    return h("div", { class: "fact" }, h("span", { text: label }), shown, h("em", { text: note || "\u00a0" }));
  }

  function facts() {
    const told = about.summary;
    const box = h("div", { class: "facts" });
    const { before, after } = about.levels;
    const [alone] = about.players;
    for (const name of ["success", "return"]) {
      const known = [before, after].filter((level) => level && isNumber(level[name][0]));
      if (known.length) {
        const notes = known.map((level) => interval(level[name])).filter(Boolean).join(" → ");
        box.append(fact(`${name} on evaluation tasks`, known.map((level) => rate(level[name][0])).join(" → "), notes));
      } else if (about.players.length === 1 && isNumber(alone[name][0])) {
        box.append(fact(name, rate(alone[name][0]), `${interval(alone[name])} of ${plural(alone.scored, "episode")}`));
      }
    }
    const last = metrics.length ? metrics[metrics.length - 1] : {};
    const steps = isNumber(last.step) ? last.step : told.steps;
    if (isNumber(steps) && steps > 0) {
      const note = told.interrupted ? "interrupted" : isNumber(about.options.steps) ? `of ${count(about.options.steps)}` : "";
      box.append(fact("steps", count(steps), note));
    }
    box.append(fact("episodes kept", count(total), about.broken ? `${plural(about.broken, "line")} could not be read` : `${count(new Set(columns.same).size)} different tasks`));
    const seconds = isNumber(last.seconds) ? last.seconds : told.seconds;
    if (isNumber(seconds) && seconds > 0) box.append(fact("time", duration(seconds), isNumber(last.num_tokens) ? `${show(last.num_tokens)} tokens` : ""));
    if (about.options.env) box.append(fact("model", about.options.model ? String(about.options.model).split("/").pop() : "tiny", about.versions.trl ? `trl ${about.versions.trl}` : ""));
    return box;
  }

  function table(head, rows) {
    return h("section", { class: "panel" }, h("div", { class: "wide" }, h("table", { class: "plain" },
      h("thead", {}, h("tr", {}, head.map((text) => h("th", { text })))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell))))))));
  }

  /** Return a table of the run's scores, as at the end of the training in the terminal. */
  function scores() {
    const rows = Object.entries(about.levels).map(([name, { success, return: paid, episodes }]) =>
      [name, estimate(success), estimate(paid), isNumber(episodes) ? count(episodes) : ""]);
    return table(["", "success [95 %]", "return [95 %]", "episodes"], rows);
  }

  /** Return a table with one line per policy and environment if there are several. */
  function byPlayer() {
    if (about.players.length < 2) return "";
    const wanted = ["policy", "env", "arguments"].filter((name) => new Set(about.players.map((one) => one[name])).size > 1);
    const rows = about.players.map((one) => {
      const failed = one.episodes - one.scored;
      return [...wanted.map((name) => name === "policy" && one.policy ? h("a", { href: filtered(one.policy), text: one.policy }) : one[name] || "–"),
        `${count(one.scored)}${failed ? ` (+${count(failed)} failed)` : ""}`, estimate(one.success), estimate(one.return), show(one.turns), show(one.tokens)];
    });
    return table([...wanted, "episodes", "success [95 %]", "return [95 %]", "turns", "tokens"], rows);
  }

  function others() {
    const shown = new Set(["step", "seconds", "epoch", "success/low", "success/high", ...MAIN.map(([, name]) => name)]);
    const names = new Set(metrics.flatMap((row) => Object.keys(row)));
    const rest = [...names].filter((name) => !shown.has(name) && !name.startsWith("env/stop/")).sort();
    if (!rest.length) return "";
    const box = h("details", { class: "more" }, h("summary", { text: `All other metrics (${rest.length})` }));
    const fill = () => {
      if (!box.open || box.children.length > 1) return;
      const charts = rest.map((name) => [name, ...logged(name)]).filter(([, xs]) => xs.length);
      box.append(h("div", { class: "charts small" }, charts.map(([name, xs, ys]) => lineChart(name, "", xs, ys))));
    };
    box.addEventListener("toggle", fill);
    return box;
  }

  // --------------------------------------------------------------------------------------------------------- filter

  const SEARCHED = ["split", "env", "task", "ended", "policy"];

  /** Return all texts of an episode in small letters: those of its row, then those of its messages. */
  const textOf = (i, said) => [
    ...SEARCHED.map((name) => columns[name][i]), ...said.opening.map((message) => message.text),
    ...said.turns.flatMap((turn) => [turn.observation, turn.thinking, turn.answer]), said.last || "", said.error || "",
  ].join("\n").toLowerCase();

  let searching = 0;

  /** Report the episodes with all of these words as they are found. */
  async function search(wanted, told) {
    const mine = ++searching;
    const found = [];
    for (let number = 0; number < firsts.length; number += 1) {
      const said = await chunk(number);
      if (mine !== searching) return;
      said.forEach((one, offset) => {
        const text = textOf(firsts[number] + offset, one);
        if (wanted.every((word) => text.includes(word))) found.push(firsts[number] + offset);
      });
      told(found, (number + 1) / firsts.length);
    }
    if (!firsts.length) told(found, 1);
  }

  // ------------------------------------------------------------------------------------------------------- episodes

  /** Columns of the table: a width and if they are numbers. */
  const COLUMNS = [
    ["#", "58px", true], ["step", "60px", true], ["split", "96px", false], ["seat", "44px", true],
    ["policy", "minmax(100px,.5fr)", false], ["env", "minmax(150px,.6fr)", false], ["task", "minmax(110px,.5fr)", false],
    ["seed", "100px", true], ["group", "58px", true], ["ended", "136px", false], ["success", "62px", false], ["return", "120px", true],
    ["turns", "58px", true], ["tokens", "62px", true], ["invalid", "60px", true], ["response", "minmax(150px,1fr)", false],
  ];
  const BRIEF = ["#", "ended", "return", "turns"];
  const NARROW = matchMedia("(max-width: 600px)");
  const ALWAYS = ["#", "seed", "ended", "return", "turns", "tokens", "invalid", "response"];

  const value = (name, i) => (name === "#" ? i : columns[name][i]);

  /** Return the options of a task without those that all tasks of the run share, if it has others. */
  function taskOf(i) {
    if (!shared) {
      const different = [...new Set(columns.task)].map((task) => new Set(task.split(" ")));
      shared = new Set([...different[0]].filter((one) => different.length > 1 && different.every((task) => task.has(one))));
    }
    return columns.task[i].split(" ").filter((one) => !shared.has(one)).join(" ") || columns.task[i];
  }

  function order(rows) {
    const { sort, descending } = view;
    if (!sort) return rows;
    const keys = new Map(rows.map((i) => [i, value(sort, i)]));
    const down = descending ? -1 : 1;
    return rows.sort((a, b) => {
      const [one, two] = [keys.get(a), keys.get(b)];
      if (one === two) return a - b;
      if (one === null || one === undefined) return 1;
      if (two === null || two === undefined) return -1;
      const less = typeof one === "string" || typeof two === "string" ? String(one).localeCompare(String(two), "en", { numeric: true }) : one - two;
      return (less || a - b) * down;
    });
  }

  const address = () => {
    const asked = new URLSearchParams();
    if (view.query) asked.set("q", view.query);
    if (view.sort) asked.set("sort", (view.descending ? "-" : "") + view.sort);
    const text = asked.toString();
    return `#/episodes${text ? `?${text}` : ""}`;
  };

  function episodes() {
    view.name = "episodes";
    const shown = COLUMNS.filter(([name]) => {
      if (NARROW.matches) return BRIEF.includes(name);
      if (name === "env" || name === "split" || name === "policy") return new Set(columns[name]).size > 1;
      return ALWAYS.includes(name) || columns[name].some((held) => held !== null && held !== "");
    });
    const template = shown.map(([name, width]) => (NARROW.matches && name === "ended" ? "minmax(0, 1fr)" : NARROW.matches && name === "#" ? "44px" : width)).join(" ");
    const input = h("input", {
      id: "filter", type: "text", placeholder: "Filter by words of the transcript",
      autocomplete: "off", spellcheck: "false", "aria-label": "Filter",
    });
    input.value = view.query;
    const told = h("span", { class: "shown", id: "shown", role: "status" });
    const space = h("div", { class: "grid-space", role: "rowgroup" });
    const head = h("div", { class: "grid-head", role: "row" }, shown.map(([name, , num]) =>
      h("span", { role: "columnheader", class: num ? "num" : "", "data-column": name },
        h("button", { type: "button", text: name, onclick: () => sortBy(name) }))));
    head.style.gridTemplateColumns = template;
    const scroll = h("div", { class: "grid-scroll", id: "rows", tabindex: "0", role: "grid", "aria-label": "Episodes" }, head, space);
    let widest = 1e-9;
    for (const one of columns.return) if (isNumber(one)) widest = Math.max(widest, Math.abs(one));

    const pool = [];
    function paint() {
      const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - OVERSCAN);
      const last = Math.min(view.rows.length, Math.ceil((scroll.scrollTop + scroll.clientHeight) / ROW) + OVERSCAN);
      while (pool.length < last - first) {
        const row = h("div", { class: "grid-row", role: "row" }, shown.map(([, , num]) => h("span", { role: "gridcell", class: num ? "num" : "" })));
        row.style.gridTemplateColumns = template;
        pool.push(row);
        space.append(row);
      }
      pool.forEach((row, k) => {
        const position = first + k;
        row.hidden = position >= last;
        if (row.hidden) return;
        const i = view.rows[position];
        row.style.top = `${position * ROW}px`;
        row.dataset.position = position;
        row.dataset.episode = i;
        row.setAttribute("aria-rowindex", position + 1);
        row.classList.toggle("here", position === view.at);
        shown.forEach(([name], c) => fill(row.children[c], name, i, widest));
      });
    }

    function refresh() {
      head.querySelectorAll("[data-column]").forEach((cell) => {
        const mine = cell.dataset.column === view.sort;
        if (mine) cell.setAttribute("aria-sort", view.descending ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      });
      const wanted = view.query.toLowerCase().split(/\s+/).filter(Boolean);
      const take = (found, share) => {
        const kept = view.rows[view.at];
        view.rows = order([...found]);
        const again = view.rows.indexOf(kept);
        view.at = again >= 0 ? again : 0;
        const many = `${count(view.rows.length)} of ${plural(total, "episode")}`;
        told.textContent = share < 1 ? `${many} · searching ${Math.round(share * 100)} %` : many;
        if (!view.rows.length && share === 1 && view.query) told.append(" ", h("button", { type: "button", class: "clear", text: "Clear the filter", onclick: clear }));
        space.style.height = `${view.rows.length * ROW}px`;
        scroll.setAttribute("aria-rowcount", view.rows.length);
        paint();
      };
      searching += 1;
      if (wanted.length) search(wanted, take);
      else take(columns.step.keys(), 1);
    }

    function clear() {
      input.value = "";
      input.dispatchEvent(new Event("input"));
      input.focus();
    }

    function sortBy(name) {
      const numeric = COLUMNS.find(([one]) => one === name)[2];
      if (view.sort !== name) [view.sort, view.descending] = [name, numeric && name !== "#" && name !== "step"];
      else if (view.descending === (numeric && name !== "#" && name !== "step")) view.descending = !view.descending;
      else [view.sort, view.descending] = ["", false];
      history.replaceState(null, "", address());
      refresh();
    }

    let waiting = 0;
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        view.query = input.value;
        history.replaceState(null, "", address());
        refresh();
        scroll.scrollTop = 0;
      }, 120);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === "ArrowDown") {
        event.preventDefault();
        event.stopPropagation();
        scroll.focus();
      }
    });
    let asked = false;
    scroll.addEventListener("scroll", () => {
      if (asked) return;
      asked = true;
      requestAnimationFrame(() => {
        asked = false;
        paint();
      });
    }, { passive: true });
    space.addEventListener("click", (event) => {
      const row = event.target.closest(".grid-row");
      if (!row) return;
      view.at = Number(row.dataset.position);
      go(`#/episode/${row.dataset.episode}`);
    });
    view.move = (to) => {
      view.at = Math.max(0, Math.min(view.rows.length - 1, to));
      const top = view.at * ROW;
      const room = scroll.clientHeight - ROW; // without the table head
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      else if (top + ROW > scroll.scrollTop + room) scroll.scrollTop = top + ROW - room;
      paint();
    };
    view.page = () => Math.max(1, Math.floor(scroll.clientHeight / ROW) - 2);
    const kept = view.at;
    main.replaceChildren(h("div", { class: "episodes" },
      h("div", { class: "bar" }, h("label", { class: "filter" }, input, h("kbd", { text: "/" })), told), scroll));
    new ResizeObserver(paint).observe(scroll);
    refresh();
    view.move(Math.min(kept, Math.max(0, view.rows.length - 1)));
    scroll.focus({ preventScroll: true });
  }

  function fill(cell, name, i, widest) {
    const held = value(name, i);
    if (name === "ended") {
      cell.replaceChildren(h("span", { class: "stop" }, h("i", { class: `dot-of ${hueOf(i)}` }), held || "–"));
    } else if (name === "success") {
      cell.textContent = held === null ? "–" : held ? "yes" : "no";
      cell.classList.toggle("none", held === null);
    } else if (name === "return") {
      const bar = h("span", { class: "meter" });
      const share = isNumber(held) ? Math.min(1, Math.abs(held) / widest) : 0;
      const colour = held > 0 ? "var(--good)" : "var(--bad)";
      bar.style.background = `linear-gradient(90deg, ${colour} ${share * 100}%, var(--line) 0)`;
      cell.classList.add("worth");
      cell.replaceChildren(bar, h("span", { class: sign(held), text: show(held) }));
    } else if (name === "env" || name === "split" || name === "policy" || name === "seed" || name === "task") {
      cell.textContent = held === "" ? "–" : name === "task" ? taskOf(i) : String(held);
      cell.title = String(held);
    } else if (name === "response") {
      cell.className = "mono preview";
      cell.textContent = held;
    } else {
      cell.textContent = name === "#" ? String(held) : show(held);
      cell.classList.toggle("none", (held === 0 && name !== "seat" && name !== "group") || held === null);
    }
  }

  // ------------------------------------------------------------------------------------------------------ an episode

  const LEVELS = [0.1, 0.36, 0.7, 1.4, 2.31, 4.61]; // surprisal: p = 0.9, 0.7, 0.5, 0.25, 0.1, 0.01
  const heatOf = (logprob) => (isNumber(logprob) ? LEVELS.filter((level) => -logprob >= level).length : -1);
  const SPECIAL = /^\s*(<\|[^|>]*\|>|<\/?s>|<(eos|bos|pad|unk|start_of_turn|end_of_turn)>|\[\/?INST\])\s*$/;

  function token(tokens, at, raw) {
    const text = tokens.texts ? tokens.texts[at] : `${tokens.ids[at]} `;
    if (!text) return null; // its character belongs to a later token
    const logprob = tokens.mask[at] && tokens.logprobs ? tokens.logprobs[at] : null;
    const kind = raw ? (tokens.mask[at] ? " in" : " out") : "";
    const span = h("span", { class: `tok${kind}${SPECIAL.test(text) ? " special" : ""}`, "data-i": at });
    if (logprob !== null) span.dataset.p = heatOf(logprob);
    span.textContent = raw && tokens.texts ? text.replaceAll("\n", "↵\n") : text;
    span.tokens = tokens;
    return span;
  }

  /** Return the range of each turn's sampled ids: as recorded, otherwise the runs of ones in the mask. */
  function spans(said) {
    if (!said.tokens || !said.tokens.texts) return null;
    if (said.turns.every((turn) => isNumber(turn.start) && isNumber(turn.stop))) return said.turns.map((turn) => [turn.start, turn.stop]);
    const { mask } = said.tokens;
    const runs = [];
    mask.forEach((one, i) => {
      if (one && !mask[i - 1]) runs.push([i, i + 1]);
      else if (one) runs[runs.length - 1][1] = i + 1;
    });
    return runs.length === said.turns.length ? runs : null;
  }

  const plain = (text, empty) => h("pre", { class: text ? "text" : "text empty", text: text || empty });

  function thinking(content, size) {
    return h("details", { class: "think" }, h("summary", {}, "Thinking ", h("span", { text: size })), h("pre", { class: "text" }, content));
  }

  /** Return the first token of the response; all tokens before it are thinking. */
  function answerStart(texts, start, stop, answer) {
    const whole = texts.slice(start, stop).join("");
    let left = answer ? whole.lastIndexOf(answer) : whole.length;
    let at = start;
    while (at < stop && left >= texts[at].length) left -= texts[at++].length;
    return answer && left < 0 ? start : at;
  }

  function modelSaid(said, k, place, heated) {
    const turn = said.turns[k];
    const box = h("div", { class: "said model" });
    const who = h("div", { class: "who", text: "Model" });
    box.append(who);
    if (!place || !heated) {
      if (turn.thinking) box.append(thinking([turn.thinking], plural(turn.thinking.split(/\s+/).length, "word")));
      box.append(plain(turn.answer, "said nothing"));
      return box;
    }
    const [start, stop] = place;
    who.append(h("small", { text: plural(stop - start, "token") }));
    const { texts } = said.tokens;
    const split = turn.thinking ? answerStart(texts, start, stop, turn.answer) : start;
    const range = (from, to) => Array.from({ length: to - from }, (_, i) => token(said.tokens, from + i, false)).filter(Boolean);
    if (split > start) box.append(thinking(range(start, split), plural(split - start, "token")));
    const rest = range(split, stop);
    box.append(rest.length ? h("pre", { class: "text" }, rest) : plain("", "said nothing"));
    return box;
  }

  const CREDITS = 3; // levels of colour on either side of 0
  const creditLimit = () => 2 * ((about.typical_advantage || 0.5));

  /** Return a level from the worst, -3, to the best, 3; one scale for the whole run, so that episodes can be compared. */
  function creditOf(advantage) {
    if (!isNumber(advantage)) return null;
    const level = Math.round((CREDITS * Math.abs(advantage)) / creditLimit());
    return Math.sign(advantage) * Math.min(CREDITS, level) || 0;
  }

  function creditLegend() {
    const limit = creditLimit();
    const box = h("span", { class: "credits" }, `advantage ${signed(-limit)} `);
    for (let level = -CREDITS; level <= CREDITS; level += 1) {
      box.append(h("i", { "data-credit": level, title: level ? `around ${signed((level * limit) / CREDITS)}` : "around 0" }));
    }
    box.append(` ${signed(limit)}`);
    return box;
  }

  function turnCard(said, k, place, heated) {
    const turn = said.turns[k];
    const advantage = said.advantages ? said.advantages[k] : null;
    return h("article", { class: "turn", "data-turn": k, "data-credit": said.advantages && creditOf(advantage) !== null ? String(creditOf(advantage)) : null },
      h("div", { class: "turn-head" }, h("span", { text: `Turn ${k + 1}` }),
        isNumber(advantage) && h("span", { class: "credit", title: "what this turn was trained with: better or worse than expected" }, "advantage ", h("b", { text: signed(advantage) })),
        !turn.valid && h("span", { class: "flag", text: "invalid action" }),
        turn.action !== null && turn.action !== turn.answer && h("span", { class: "read", title: "what was read from the answer" }, "action ", h("b", { text: turn.action })),
        h("span", { class: `reward ${sign(turn.reward)}`, title: "reward", text: signed(turn.reward) })),
      h("div", { class: "said env" }, h("div", { class: "who", text: "Environment" }), plain(turn.observation, "said nothing")),
      modelSaid(said, k, place, heated));
  }

  function outcome(i) {
    const stop = columns.ended[i];
    const kind = columns.success[i] ? "good" : columns.return[i] === null ? "bad" : columns.success[i] === null ? "" : "warn";
    return h("span", { class: `verdict ${kind}` }, h("i", { class: `dot-of ${hueOf(i)}` }), stop || "–");
  }

  function heatLegend() {
    const box = h("span", { class: "heat" }, "likely ");
    for (let level = 0; level < 7; level += 1) {
      const swatch = h("i", { class: "tok", "data-p": level, title: level ? `p under ${[0.9, 0.7, 0.5, 0.25, 0.1, 0.01][level - 1]}` : "p over 0.9" });
      box.append(swatch);
    }
    box.append(" surprising");
    return box;
  }

  let drawing = 0;

  async function episode(i, tokensShown) {
    view.name = "episode";
    if (!(i >= 0 && i < total)) {
      main.replaceChildren(h("p", { class: "opening", text: `There is no episode ${i} in this run.` }));
      return;
    }
    const mine = ++drawing;
    view.episode = i;
    view.tokens = Boolean(tokensShown);
    const said = await body(i);
    if (mine !== drawing) return;
    view.tokens = Boolean(tokensShown && said.tokens);
    view.turn = -1;
    const talk = h("div", { class: "talk", tabindex: "0", id: "talk" });
    const inner = h("div", { class: "talk-in" });
    talk.append(inner);
    const modes = said.tokens && h("span", { class: "seg", role: "group", "aria-label": "How it is shown" },
      [["Conversation", ""], ["Tokens", "/tokens"]].map(([label, end]) => h("button", {
        type: "button", "aria-pressed": String(view.tokens === Boolean(end)), text: label, onclick: () => go(`#/episode/${i}${end}`),
      })));
    inner.append(h("div", { class: "talk-head" }, h("h1", { text: `Episode ${i}` }), isSeat(i) && h("span", { class: "verdict", text: seatName(i) }), outcome(i),
      h("span", { class: `verdict ${columns.return[i] > 0 ? "good" : columns.return[i] < 0 ? "bad" : ""}`, text: `return ${show(columns.return[i])}` }),
      modes));
    inner.append(...(view.tokens ? tokensView(said) : conversation(said)));
    main.replaceChildren(h("div", { class: "episode" }, talk, rail(i, said)));
    talk.focus({ preventScroll: true });
  }

  function keyline(said) {
    const { tokens } = said;
    return h("div", { class: "keyline" },
      h("span", {}, h("i", { class: "sw model" }), "sampled, trained on (mask 1)"),
      h("span", {}, h("i", { class: "sw env" }), "given by the environment (mask 0)"),
      tokens && tokens.logprobs && heatLegend(), said.advantages && creditLegend());
  }

  function conversation(said) {
    const places = spans(said);
    const parts = [keyline(said)];
    for (const message of said.opening) {
      parts.push(h("article", { class: "turn" }, h("div", { class: "said env" }, h("div", { class: "who", text: message.role }), plain(message.text, "empty"))));
    }
    said.turns.forEach((_, k) => parts.push(...borders(said, k), turnCard(said, k, places && places[k], true)));
    if (said.last !== null) {
      parts.push(h("article", { class: "turn" }, h("div", { class: "said env" }, h("div", { class: "who" }, "Environment", h("small", { text: "at the end" })), plain(said.last, "said nothing"))));
    }
    if (said.error !== null) parts.push(h("div", { class: "error" }, h("b", { text: "Error" }), plain(said.error, "")));
    if (!said.turns.length && said.error === null) parts.push(h("div", { class: "ended", text: "Nothing was said in this episode." }));
    return parts;
  }

  /** Return the lines before turn k that say where a segment begins. */
  function borders(said, k) {
    return said.segments.flatMap((border, n) => (border.turn === k ? [h("div", { class: "border", "data-segment": n + 2 },
      h("b", { text: `Segment ${n + 2}` }), " the history changed what the model is shown")] : []));
  }

  function tokensView(said) {
    const { tokens } = said;
    const stream = (from, to) => {
      const box = h("pre", { class: "text" });
      for (let at = from; at < to; at += 1) box.append(token(tokens, at, true) || "");
      return box;
    };
    const ends = [...said.segments.map((border) => border.start), tokens.ids.length];
    const completions = [0, ...said.segments.map((border) => border.stop)].flatMap((from, n) => {
      const sampled = tokens.mask.slice(from, ends[n]).reduce((sum, one) => sum + one, 0);
      const border = n ? said.segments[n - 1] : null;
      const name = border ? `Completion of segment ${n + 1}` : "Completion";
      return [
        border && h("article", { class: "turn raw", "data-segment": n + 1 }, h("div", { class: "turn-head", text: `Prompt of segment ${n + 1} · ${plural(from - border.start, "token")}` }),
          h("div", { class: "said env" }, stream(border.start, from))),
        h("article", { class: "turn raw" }, h("div", { class: "turn-head", text: `${name} · ${plural(ends[n] - from, "token")}, ${count(sampled)} sampled` }),
          h("div", { class: "said" }, stream(from, ends[n]))),
      ].filter(Boolean);
    });
    const prompt = tokens.prompt !== null ? tokens.prompt : (tokens.prompt_ids || []).join(" ");
    return [keyline(said),
      h("article", { class: "turn" }, h("div", { class: "turn-head", text: "Prompt" }), h("div", { class: "said env" }, plain(prompt, "empty"))),
      ...completions,
      !tokens.texts && h("div", { class: "ended", text: "These are ids: no tokenizer was found beside the run. gym-trl view --tokenizer FOLDER shows their text." }),
    ].filter(Boolean);
  }

  /** Return a bar for each turn's reward or advantage. */
  function turnBars(title, values, kind = "") {
    const rewards = values.map((value) => value || 0);
    const [low, high] = [Math.min(0, ...rewards), Math.max(0, ...rewards)];
    const [width, height] = [284, 70];
    const svg = s("svg", { class: `rewards ${kind}`, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
    const y = (reward) => 4 + ((high - reward) / (high - low || 1)) * (height - 8);
    const zero = high === low ? height - 6 : y(0);
    const each = Math.min(28, width / Math.max(1, rewards.length));
    rewards.forEach((reward, k) => {
      const tall = reward ? Math.max(2, Math.abs(y(reward) - zero)) : 2;
      const bar = s("rect", {
        class: reward > 0 ? "plus" : reward < 0 ? "minus" : "zero", x: k * each + 1, width: Math.max(1, each - 2), rx: 1.5,
        y: reward > 0 ? zero - tall : zero, height: tall,
      });
      bar.addEventListener("pointermove", (event) => pop(event, [pair(`turn ${k + 1}`, signed(values[k]))]));
      bar.addEventListener("pointerleave", () => { tip.hidden = true; });
      bar.addEventListener("click", () => toTurn(k));
      svg.append(bar);
    });
    svg.append(s("line", { x1: 0, x2: width, y1: zero, y2: zero }));
    return svg;
  }

  function rail(i, said) {
    const position = view.rows.indexOf(i);
    const near = (by, label) => {
      const to = position < 0 ? i + by : view.rows[position + by];
      return h("button", { type: "button", text: label, disabled: !(to >= 0 && to < total), onclick: () => stepTo(by) });
    };
    const facts = [
      ["env", columns.env[i]], ["seed", columns.seed[i]],
      ...Object.entries(said.options).map(([name, held]) => [name, held]), ["step", columns.step[i]], ["split", columns.split[i]], ["group", columns.group[i]], ["seat", columns.seat[i]], ["policy", columns.policy[i]],
      ["turns", columns.turns[i]], ["tokens", columns.tokens[i]], ["prompt tokens", said.counts.prompt], ["completion tokens", said.counts.completion],
      ...Object.entries(said.more).map(([name, held]) => [words(name), held]),
    ].filter(([, held]) => held !== null && held !== undefined && held !== "");
    const members = membersOf(i);
    const others = sameTask(i).filter((j) => !members.includes(j));
    return h("aside", { class: "rail" },
      h("div", { class: "steps" }, near(-1, "← previous"), near(1, "next →")),
      said.turns.length > 0 && h("section", {}, h("h2", { text: "Reward of each turn" }), turnBars("Reward of each turn", said.turns.map((turn) => turn.reward))),
      said.turns.length > 0 && said.advantages && h("section", {}, h("h2", { text: "Advantage of each turn" }), turnBars("Advantage of each turn", said.advantages, "of-credit")),
      members.length > 1 && h("section", {}, h("h2", {}, `Group of ${members.length} on this task`, h("a", { href: `#/group/${i}`, text: "side by side" })), memberList(members, i, (j) => [isSeat(j) && seatName(j), columns.ended[j]].filter(Boolean).join(" · "))),
      others.length > 0 && h("section", {}, h("h2", {}, "This task at other times", h("a", { href: `#/group/${i}/all`, text: "compare" })), memberList(others, i, when)),
      h("section", {}, h("h2", { text: "Facts" }), h("dl", { class: "pairs" }, facts.flatMap(([name, held]) => [h("dt", { text: name }), h("dd", { text: typeof held === "number" && name !== "seed" ? show(held) : String(held) })]))));
  }

  function memberList(list, here, about) {
    const shown = list.slice(0, 40);
    return h("div", { class: "members" }, shown.map((j) => h("a", { class: "member", href: `#/episode/${j}`, "aria-current": j === here ? "true" : null },
      h("i", { class: `dot-of ${hueOf(j)}` }), h("span", {}, `${j} `, h("small", { text: about(j) })),
      h("small", { text: plural(columns.turns[j], "turn") }), h("span", { class: `mono ${sign(columns.return[j])}`, text: show(columns.return[j]) }))),
      list.length > shown.length && h("small", { class: "soft", text: `and ${count(list.length - shown.length)} more` }));
  }

  const when = (i) => [isNumber(columns.step[i]) ? `step ${show(columns.step[i])}` : "", columns.split[i], isNumber(columns.step[i]) ? "" : columns.policy[i]].filter(Boolean).join(" · ");

  function toTurn(k) {
    const cards = [...main.querySelectorAll("[data-turn]")];
    if (!cards.length) return;
    view.turn = Math.max(0, Math.min(cards.length - 1, k));
    cards.forEach((card, at) => card.classList.toggle("here", at === view.turn));
    cards[view.turn].scrollIntoView({ block: "nearest" });
  }

  function stepTo(by) {
    const position = view.rows.indexOf(view.episode);
    const to = position < 0 ? view.episode + by : view.rows[position + by];
    if (to === undefined || to < 0 || to >= total) return;
    if (position >= 0) view.at = position + by;
    go(`#/episode/${to}${view.tokens ? "/tokens" : ""}`);
  }

  // -------------------------------------------------------------------------------------------------------- a group

  const MOST_MEMBERS = 64;
  const MOST_TOKENS = 60000;

  async function group(i, all) {
    view.name = "group";
    if (!(i >= 0 && i < total)) {
      episode(i);
      return;
    }
    const mine = ++drawing;
    const together = membersOf(i);
    const everything = sameTask(i);
    const wide = all || together.length < 2;
    const members = (wide ? everything : together).slice(0, MOST_MEMBERS);
    view.episode = i;
    view.members = members;
    view.all = wide;
    const bodies = await Promise.all(members.map(body));
    if (mine !== drawing) return;
    // A baseline is that of a seat: what one wins another may lose.
    const seats = [...new Set(members.map((j) => columns.seat[j]))].sort((one, two) => one - two);
    const averages = new Map(seats.map((seat) => [seat, mean(members.filter((j) => columns.seat[j] === seat).map((j) => columns.return[j]))]));
    const distance = (j) => columns.return[j] - averages.get(columns.seat[j]);
    const sizes = bodies.reduce((sum, said) => sum + (said.tokens ? said.tokens.ids.length : 0), 0);
    const rows = Math.max(0, ...bodies.map((said) => said.turns.length));
    const grid = h("div", { class: "group-grid" });
    grid.style.gridTemplateColumns = `repeat(${members.length}, minmax(${members.length > 2 ? 300 : 360}px, 1fr))`;
    members.forEach((j) => grid.append(h("div", { class: "group-head" }, h("a", { class: `group-card ${hueOf(j)}${j === i ? " here" : ""}`, href: `#/episode/${j}`, "data-member": j },
      h("div", { class: "row" }, h("b", { class: sign(columns.return[j]), text: show(columns.return[j]) }), h("span", { text: columns.ended[j] })),
      h("div", { class: "row" }, h("span", { text: [isSeat(j) && seatName(j), wide ? `${j} · ${when(j)}` : isSeat(j) ? j : `Episode ${j}`].filter((part) => part !== false).join(" · ") }),
        h("span", { title: `its return less the mean of those shown${isSeat(j) ? ` of ${seatName(j)}` : ""}`, text: isNumber(columns.return[j]) ? `${signed(Number(distance(j).toFixed(4)))} to mean` : "" }))))));
    const places = bodies.map(spans);
    for (let k = 0; k < rows; k += 1) {
      bodies.forEach((said, m) => grid.append(h("div", { class: "group-cell" }, k < said.turns.length && turnCard(said, k, places[m] && places[m][k], sizes < MOST_TOKENS))));
    }
    bodies.forEach((said) => grid.append(h("div", { class: "group-cell" },
      (said.last !== null || said.error !== null) && h("article", { class: "turn" }, h("div", { class: "said env" },
        h("div", { class: "who" }, said.error !== null ? "Error" : "Environment", h("small", { text: "at the end" })), plain(said.error ?? said.last, "said nothing"))))));
    const scroll = h("div", { class: "group-scroll", tabindex: "0" }, grid);
    const modes = together.length > 1 && everything.length > together.length && h("span", { class: "seg" },
      [["This step", ""], ["All times", "/all"]].map(([label, end]) => h("button", { type: "button", "aria-pressed": String(wide === Boolean(end)), text: label, onclick: () => go(`#/group/${i}${end}`) })));
    const hidden = (wide ? everything : together).length - members.length;
    main.replaceChildren(h("div", { class: "group" }, h("div", { class: "bar group-bar" },
      h("h1", { text: `${members.length} episodes on one task` }),
      h("span", { class: "soft" }, [columns.env[i], taskOf(i), `seed ${columns.seed[i]}`, wide ? "" : when(i), `mean return ${seats.map((seat) => `${show(averages.get(seat))}${isNumber(seat) ? ` (seat ${seat})` : ""}`).join(", ")}`, hidden ? `${hidden} more not shown` : ""].filter(Boolean).join(" · ")),
      h("span", { class: "grow" }), bodies.some((said) => said.advantages) && creditLegend(), bodies.some((said) => said.tokens && said.tokens.logprobs) && heatLegend(), modes), scroll));
    scroll.focus({ preventScroll: true });
    main.querySelector(".group-card.here")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // ------------------------------------------------------------------------------------------------------- navigation

  function pop(event, children) {
    tip.replaceChildren(...children);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - box.width - 10 : event.clientX + 14;
    const top = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  main.addEventListener("pointerover", (event) => {
    const span = event.target.closest?.(".tok[data-i]");
    if (!span || !span.tokens) {
      if (["episode", "group"].includes(view.name)) tip.hidden = !event.target.closest?.(".rewards");
      return;
    }
    const { tokens } = span;
    const at = Number(span.dataset.i);
    const text = tokens.texts ? JSON.stringify(tokens.texts[at]) : "";
    const logprob = tokens.logprobs && tokens.mask[at] ? tokens.logprobs[at] : null;
    const lines = [h("b", { text }), pair("id", String(tokens.ids[at])), pair("mask", String(tokens.mask[at]))];
    if (logprob !== null) lines.push(pair("logprob", logprob.toFixed(3)), pair("probability", `${(100 * Math.exp(logprob)).toPrecision(3)} %`));
    pop(event, lines);
  });
  main.addEventListener("scroll", () => { tip.hidden = true; }, { capture: true, passive: true });

  // The page is routed at once and not with the event "hashchange", so that the next key means the new page.
  function go(hash) {
    if (location.hash !== hash) history.pushState(null, "", hash);
    route();
  }

  function route() {
    const [where, asked] = location.hash.replace(/^#/, "").split("?");
    const parts = where.split("/").filter(Boolean);
    tip.hidden = true;
    drawing += 1;
    hovers.clear();
    const tab = parts.length ? "episodes" : "curves";
    document.querySelectorAll("[data-tab]").forEach((link) => {
      if (link.dataset.tab === tab) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    if (parts[0] === "episodes") {
      const given = new URLSearchParams(asked || "");
      const sort = given.get("sort") || "";
      const query = given.get("q") || "";
      if (query !== view.query) view.at = 0;
      view.query = query;
      [view.sort, view.descending] = [sort.replace(/^-/, ""), sort.startsWith("-")];
      if (!COLUMNS.some(([name]) => name === view.sort)) view.sort = "";
      episodes();
    } else if (parts[0] === "episode") episode(Number(parts[1]), parts[2] === "tokens");
    else if (parts[0] === "group") group(Number(parts[1]), parts[2] === "all");
    else if (parts.length) go("#/");
    else curves();
  }

  const KEYS = [
    ["Everywhere", [["1  2", "curves, episodes"], ["/", "filter the episodes"], ["Esc", "back"], ["?", "these keys"]]],
    ["Episodes", [["j  k  ↓  ↑", "move"], ["Enter", "open"], ["g", "its group, side by side"]]],
    ["An episode", [["j  k", "next, previous turn"], ["→  ←", "next, previous episode"], ["h", "open or fold all thinking"], ["m", "conversation or tokens"], ["g", "its group"]]],
    ["A group", [["→  ←", "choose a member"], ["Enter", "open it"], ["a", "this step, or all times"], ["h", "open or fold all thinking"]]],
  ];
  help.append(h("h2", { text: "Keys" }), ...KEYS.flatMap(([title, keys]) => [h("h3", { text: title }), h("dl", {}, keys.flatMap(([key, does]) => [h("dt", {}, h("kbd", { text: key })), h("dd", { text: does })]))]));
  help.addEventListener("click", (event) => { if (event.target === help) help.close(); });

  const unfold = () => {
    const all = [...main.querySelectorAll(".think")];
    const open = all.some((one) => !one.open);
    for (const one of all) one.open = open;
  };

  const choose = (by) => {
    const at = view.members.indexOf(view.episode);
    const to = view.members[Math.max(0, Math.min(view.members.length - 1, at + by))];
    view.episode = to;
    main.querySelectorAll("[data-member]").forEach((card) => {
      card.classList.toggle("here", Number(card.dataset.member) === to);
      if (Number(card.dataset.member) === to) card.scrollIntoView({ block: "nearest", inline: "nearest" });
    });
  };

  const PRESSED = {
    episodes: {
      j: () => view.move(view.at + 1), k: () => view.move(view.at - 1), ArrowDown: () => view.move(view.at + 1), ArrowUp: () => view.move(view.at - 1),
      PageDown: () => view.move(view.at + view.page()), PageUp: () => view.move(view.at - view.page()), Home: () => view.move(0), End: () => view.move(view.rows.length - 1),
      Enter: () => view.rows.length && go(`#/episode/${view.rows[view.at]}`), o: () => view.rows.length && go(`#/episode/${view.rows[view.at]}`),
      g: () => view.rows.length && go(`#/group/${view.rows[view.at]}`), Escape: () => go("#/"),
    },
    episode: {
      j: () => toTurn(view.turn + 1), k: () => toTurn(view.turn - 1), ArrowRight: () => stepTo(1), ArrowLeft: () => stepTo(-1), n: () => stepTo(1), p: () => stepTo(-1),
      h: unfold, m: () => go(`#/episode/${view.episode}${view.tokens ? "" : "/tokens"}`), g: () => go(`#/group/${view.episode}`), Escape: () => go(address()),
    },
    group: {
      ArrowRight: () => choose(1), ArrowLeft: () => choose(-1), Enter: () => go(`#/episode/${view.episode}`), h: unfold,
      a: () => go(`#/group/${view.episode}${view.all ? "" : "/all"}`), Escape: () => go(`#/episode/${view.episode}`),
    },
    curves: {},
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target instanceof HTMLInputElement) {
      if (event.key === "Escape") document.getElementById("rows")?.focus();
      return;
    }
    const onControl = event.key === "Enter" && event.target.closest("a, button, summary");
    const everywhere = {
      "?": () => help.showModal(), 1: () => go("#/"), 2: () => go(address()),
      "/": () => {
        if (view.name !== "episodes") go(address());
        document.getElementById("filter").focus();
        document.getElementById("filter").select();
      },
    };
    const action = (PRESSED[view.name] || {})[event.key] || everywhere[event.key];
    if (!action || onControl) return;
    event.preventDefault();
    action();
  });

  document.getElementById("help-button").addEventListener("click", () => help.showModal());
  addEventListener("hashchange", route);
  NARROW.addEventListener("change", route);

  async function start() {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser cannot decompress (DecompressionStream); a newer one can");
    await open();
    route();
    root.dataset.ready = "yes";
    performance.mark("ready");
  }
  start().catch((error) => main.replaceChildren(h("p", { class: "opening wrong", text: `The run cannot be shown: ${error.message}` })));
})();
