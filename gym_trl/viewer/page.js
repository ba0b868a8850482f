"use strict";
// The page of a run. Everything that a run has is inserted as text: h() makes elements, and the page's policy
// (require-trusted-types-for) makes browsers reject markup from strings. Every view is a function that returns elements,
// and route() shows the one that the address names: #/, #/episodes, #/episode/N, #/episode/N/tokens or #/group/N.
(() => {
  const main = document.getElementById("main");
  const tip = document.getElementById("tip");

  // ------------------------------------------------------------------------------------------------------- elements

  /** Return an element with attributes and children; strings become text. */
  function h(tag, attributes, ...children) {
    return filled(document.createElement(tag), attributes, children);
  }

  /** Return an element of an SVG picture. */
  function s(tag, attributes, ...children) {
    return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
  }

  function filled(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (isThere(value)) element.setAttribute(name, value);
    }
    element.append(...children.flat(Infinity).filter(isThere));
    return element;
  }

  const isThere = (value) => value !== null && value !== undefined && value !== false;
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const count = (number) => number.toLocaleString("en");
  const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
  const sign = (number) => (number > 0 ? "pos" : number < 0 ? "neg" : "");
  const signed = (number) => (number > 0 ? `+${show(number)}` : show(number));

  /** Return a number with three digits. */
  function show(number) {
    if (!isNumber(number)) return "–";
    const size = Math.abs(number);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return number.toExponential(1).replace("-", "−");
    const short = Number.isInteger(number) ? number : Number(size >= 100 ? number.toFixed(1) : number.toPrecision(3));
    return count(short).replace("-", "−");
  }

  const rate = (number) => (isNumber(number) ? number.toFixed(3).replace("-", "−") : "–");
  const ends = (score) => (isNumber(score?.low) ? `[${rate(score.low)}, ${rate(score.high)}]` : "");

  const mean = (values) => {
    const known = values.filter(isNumber);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  };

  /** Show what is under the pointer. */
  function pop(event, title, pairs) {
    tip.replaceChildren(h("b", {}, title), ...pairs.map(([name, value]) => h("div", {}, h("span", {}, name), h("b", {}, value))));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 10 : event.clientX + 14;
    const top = event.clientY + 16 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, top)}px`;
  }

  const unpop = () => { tip.hidden = true; };

  // ----------------------------------------------------------------------------------------------------------- data

  let run = null; // what Run.index in run.py returns
  let columns = {};
  let total = 0;
  const chunks = new Map(); // by name, promises of what is unpacked; the last ones that were used

  /** Return the content of one of the page's compressed parts. */
  function unpacked(name) {
    const known = chunks.get(name) || unpack(document.getElementById(name).textContent);
    chunks.delete(name);
    chunks.set(name, known);
    if (chunks.size > 12) chunks.delete(chunks.keys().next().value);
    return known;
  }

  async function unpack(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  /** Return the record of an episode with its tokens. */
  async function recordOf(i) {
    const number = run.firsts.findLastIndex((first) => first <= i);
    const [records, tokens] = await Promise.all([unpacked(`records-${number}`), unpacked(`tokens-${number}`)]);
    return { ...records[i - run.firsts[number]], tokens: tokens[i - run.firsts[number]] };
  }

  /** Return the episodes of an episode's group: those of its task at its time. */
  function groupOf(i) {
    const same = (j) => ["same", "step", "split", "policy", "group"].every((name) => columns[name][i] === columns[name][j]);
    return [...columns.same.keys()].filter(same);
  }

  const seatOf = (i) => (isNumber(columns.seat[i]) ? `seat ${columns.seat[i]}` : null);

  // --------------------------------------------------------------------------------------------------------- curves

  const EDGE = { left: 48, right: 20, top: 14, bottom: 24 };
  const MAIN = [
    ["Return", "env/return"], ["Success", "env/success"], ["Turns", "env/turns"],
    ["Tokens", "completions/mean_length"], ["Invalid actions", "env/invalid_actions"],
  ];

  function curves() {
    const names = [...new Set(run.metrics.flatMap((row) => Object.keys(row)))].sort();
    const stops = names.filter((name) => name.startsWith("env/stop/"));
    const shown = new Set(["step", "seconds", "epoch", "episodes", ...stops, ...MAIN.map(([, name]) => name)]);
    const others = names.filter((name) => !shown.has(name)).map((name) => chart(name, "", [logged(name)])).filter(isThere);
    const size = run.metrics.at(-1)?.episodes;
    const note = (name) => `${name}${isNumber(size) ? ` · ${plural(size, "episode")}` : ""}`;
    const charts = MAIN.map(([title, name]) => {
      const levels = run.scores.filter((one) => ["random", "blind"].includes(one.policy));
      const heights = levels.map((one) => [one.policy, one[name.slice(4)]?.mean]).filter(([, height]) => isNumber(height)).sort(([, one], [, other]) => one - other);
      return chart(title, note(name), [logged(name)], heights, name === "env/success" ? [0, 1] : []);
    });
    charts.push(chart("Ended", note("env/stop/…"), stops.map(stopped), [], [0, 1]));
    return h("div", { class: "curves" }, facts(), scores(), h("div", { class: "charts" }, charts),
      others.length > 0 && h("details", { class: "more" }, h("summary", {}, `All other metrics (${others.length})`), h("div", { class: "charts small" }, others)));
  }

  /** Return the points of a metric. */
  function logged(name) {
    const rows = run.metrics.filter((row) => isNumber(row[name]) && isNumber(row.step));
    return { xs: rows.map((row) => row.step), ys: rows.map((row) => row[name]) };
  }

  /** Return the shares of a stop reason, which has a metric only in the steps in which it occurred. */
  function stopped(name) {
    const rows = run.metrics.filter((row) => isNumber(row.step) && Object.keys(row).some((one) => one.startsWith("env/stop/")));
    return { ended: name.slice(9), xs: rows.map((row) => row.step), ys: rows.map((row) => Number(row[name]) || 0) };
  }

  function facts() {
    const fact = (label, value, note) => h("div", { class: "fact" }, h("span", {}, label), h("b", {}, value), h("em", {}, note || "\u00a0"));
    const model = run.scores.filter((one) => ["before", "after"].includes(one.policy));
    const last = run.metrics.at(-1) || {};
    const minutes = last.seconds / 60;
    return h("div", { class: "facts" },
      ["success", "return"].map((key) => {
        const known = model.filter((one) => isNumber(one[key]?.mean));
        const values = known.flatMap((one, n) => [n ? h("i", {}, " → ") : "", rate(one[key].mean)]);
        return known.length > 0 && fact(`${key} on evaluation tasks`, values, known.map((one) => ends(one[key])).join(" → "));
      }),
      isNumber(last.step) && fact("steps", show(last.step), run.interrupted ? "so far" : ""),
      fact("episodes kept", count(total), run.broken ? `${plural(run.broken, "line")} could not be read` : plural(new Set(columns.same).size, "task")),
      isNumber(minutes) && fact("time", minutes < 60 ? `${show(Math.round(minutes))} min` : `${Math.floor(minutes / 60)} h ${Math.round(minutes % 60)} min`),
      isThere(run.options.model) && fact("model", text(run.options.model).split("/").pop()));
  }

  function scores() {
    if (!run.scores.length) return null;
    const several = new Set(run.scores.map((one) => one.env)).size > 1;
    const head = ["", several && "environment", "success [95 %]", "return [95 %]", "episodes", "unscored"].filter(isThere);
    const rows = run.scores.map((one) => [
      text(one.policy) || "–", several && text(one.env),
      ...["success", "return"].map((key) => `${rate(one[key]?.mean)} ${ends(one[key])}`), show(one.episodes), show(one.unscored),
    ].filter(isThere));
    return h("section", { class: "panel wide" }, h("table", {},
      h("thead", {}, h("tr", {}, head.map((name) => h("th", {}, name)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
  }

  /** Return a panel with lines over the steps, and with dashed levels; it is drawn again when its width changes. */
  function chart(title, note, lines, levels = [], bounds = []) {
    if (!lines.some(({ xs }) => xs.length)) return null;
    const picture = s("svg", { class: "chart", role: "img", "aria-label": title });
    const [only] = lines;
    const now = lines.length === 1 ? show(smooth(only.ys).at(-1)) : null;
    new ResizeObserver(() => {
      const [width, height] = [picture.clientWidth, picture.clientHeight];
      picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
      if (width) picture.replaceChildren(...drawn(lines, levels, bounds, width, height));
    }).observe(picture);
    picture.addEventListener("pointerleave", unpop);
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
      const { xs } = only;
      const wanted = xs[0] + share * (xs.at(-1) - xs[0]);
      const at = xs.reduce((best, x, k) => (Math.abs(x - wanted) < Math.abs(xs[best] - wanted) ? k : best), 0);
      pop(event, `step ${show(xs[at])}`, lines.map((line) => [line.ended || title.toLowerCase(), show(line.ys[line.xs.indexOf(xs[at])])]));
    });
    return h("section", { class: "panel" },
      h("h2", {}, title, h("small", {}, note), h("span", { class: "now" }, now)), picture,
      lines.length > 1 && h("div", { class: "legend" }, lines.map(({ ended }) => h("span", {}, dot(ended), ended))));
  }

  function drawn(lines, levels, bounds, width, height) {
    const every = lines.flatMap(({ xs }) => xs);
    const heights = [...lines.flatMap(({ ys }) => ys), ...levels.map(([, level]) => level), ...bounds];
    const extent = (values) => values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
    const [left, right] = extent(every);
    let [low, high] = extent(heights);
    if (!bounds.length) [low, high] = [low - ((high - low) * 0.06 || 0.5), high + ((high - low) * 0.06 || 0.5)];
    const x = (value) => EDGE.left + ((value - left) / (right - left || 1)) * (width - EDGE.left - EDGE.right);
    const y = (value) => height - EDGE.bottom - ((value - low) / (high - low || 1)) * (height - EDGE.top - EDGE.bottom);
    const path = (xs, ys) => xs.map((value, k) => `${k ? "L" : "M"}${x(value).toFixed(1)} ${y(ys[k]).toFixed(1)}`).join("");
    return [
      ...ticks(low, high, height < 150 ? 3 : 4).flatMap((at) => [
        s("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y(at), y2: y(at) }),
        s("text", { x: EDGE.left - 8, y: y(at) + 4, "text-anchor": "end" }, show(at)),
      ]),
      ...ticks(left, right, Math.max(2, Math.floor(width / 90))).map((at) => s("text", { x: x(at), y: height - 7, "text-anchor": "middle" }, show(at))),
      ...levels.flatMap(([name, level], k) => [
        s("line", { class: `level ${name}`, x1: EDGE.left, x2: width - EDGE.right, y1: y(level), y2: y(level) }),
        // The name of the lower of two levels is under its line, so that they stay apart.
        s("text", { class: name, x: width - EDGE.right - 6, y: y(level) + (k < levels.length - 1 ? 13 : -4), "text-anchor": "end" }, `${name} ${show(level)}`),
      ]),
      ...lines.flatMap(({ xs, ys, ended }) => [
        s("path", { class: "raw", "data-ended": ended, d: path(xs, ys) }),
        s("path", { class: "smooth", "data-ended": ended, d: path(xs, smooth(ys)) }),
        ...(xs.length < 12 ? xs.map((at, k) => s("circle", { class: "point", "data-ended": ended, cx: x(at), cy: y(ys[k]), r: 3 })) : []),
      ]),
    ];
  }

  /** Return round numbers between two. */
  function ticks(low, high, wanted) {
    const power = 10 ** Math.floor(Math.log10((high - low || 1) / wanted));
    const step = [1, 2, 5, 10].map((one) => one * power).find((one) => (high - low) / one <= wanted);
    const first = Math.ceil(low / step);
    return Array.from({ length: Math.max(0, Math.floor(high / step + 1e-6) - first + 1) }, (_, k) => Number(((first + k) * step).toPrecision(10)));
  }

  /** Return the moving average, with a window of a twentieth of the length. */
  function smooth(values) {
    const reach = Math.floor(values.length / 40);
    return values.map((_, k) => mean(values.slice(Math.max(0, k - reach), k + reach + 1)));
  }

  // ------------------------------------------------------------------------------------------- the table of episodes

  const ROW = 34; // height in pixels
  const BATCH = 200; // rows that are added at a time
  const COLUMNS = [
    ["#", "58px"], ["step", "60px"], ["split", "70px"], ["policy", "minmax(70px, .5fr)"], ["env", "minmax(150px, .6fr)"],
    ["task", "minmax(110px, 1fr)"], ["seed", "100px"], ["group", "58px"], ["seat", "44px"], ["ended", "100px"], ["success", "60px"],
    ["return", "104px"], ["turns", "58px"], ["tokens", "64px"], ["invalid", "64px"], ["response", "minmax(150px, 1fr)"],
  ];
  const ALWAYS = ["#", "ended", "return", "turns", "response"]; // the others only where episodes differ
  const NUMBERS = ["#", "step", "seed", "group", "seat", "return", "turns", "tokens", "invalid"];
  let listed = []; // episodes of the table as it was last shown, for the arrow keys
  let searching = 0;

  function episodes(query) {
    const asked = { q: query.get("q") || "", sort: query.get("sort") || "" }; // a column, after "-" from the largest
    const columnsShown = COLUMNS.filter(([name]) => ALWAYS.includes(name) || new Set(columns[name]).size > 1);
    const about = (name) => ({ "data-column": name, class: NUMBERS.includes(name) ? "num" : null });
    const input = h("input", { id: "filter", type: "search", placeholder: "Words of the transcript", "aria-label": "Filter", spellcheck: "false" });
    const told = h("span", { id: "shown", role: "status" });
    const head = h("div", { class: "row head" }, columnsShown.map(([name]) => h("button", { ...about(name), type: "button", onclick: () => sortBy(name) }, name)));
    const rows = h("div", { class: "rows" });
    const widest = columns.return.reduce((most, one) => (isNumber(one) ? Math.max(most, Math.abs(one)) : most), 1e-9);

    function more() {
      const from = rows.children.length;
      rows.append(...listed.slice(from, from + BATCH).map((i) => h("a", { class: "row", href: `#/episode/${i}` },
        columnsShown.map(([name]) => h("span", about(name), cell(name, i, widest))))));
    }

    function list(found, share) {
      listed = sorted(found, asked.sort);
      told.textContent = `${count(listed.length)} of ${plural(total, "episode")}${share < 1 ? ` · searching ${Math.round(100 * share)} %` : ""}`;
      rows.replaceChildren();
      do more(); while (rows.children.length < Math.min(listed.length, ((history.state?.top || 0) + innerHeight) / ROW));
    }

    function refresh() {
      const words = asked.q.toLowerCase().split(/\s+/).filter(Boolean);
      for (const button of head.children) {
        const place = ["", "-"].findIndex((way) => way + button.textContent === asked.sort);
        button.setAttribute("aria-sort", ["none", "ascending", "descending"][place + 1]);
      }
      searching += 1;
      if (words.length) search(words, list);
      else list([...columns.return.keys()], 1);
    }

    function changed(change) {
      Object.assign(asked, change);
      const address = new URLSearchParams(Object.entries(asked).filter(([, value]) => value)).toString();
      history.replaceState(null, "", `#/episodes${address ? `?${address}` : ""}`);
      refresh();
    }

    const sortBy = (name) => changed({ sort: asked.sort === name ? `-${name}` : asked.sort === `-${name}` ? "" : name });
    input.value = asked.q;
    input.addEventListener("input", () => changed({ q: input.value }));
    const end = h("div", {});
    new IntersectionObserver(([one]) => one.isIntersecting && more(), { root: main, rootMargin: "2000px" }).observe(end);
    const box = h("div", { class: "episodes" }, h("div", { class: "bar" }, input, told), head, rows, end);
    box.style.setProperty("--columns", columnsShown.map(([, width]) => width).join(" "));
    refresh();
    return box;
  }

  function cell(name, i, widest) {
    const value = name === "#" ? i : columns[name][i];
    if (name === "ended") return [dot(endOf(i)), value || "–"];
    if (name === "success") return value === null ? "–" : value ? "yes" : "no";
    if (name === "return") {
      const bar = h("i", { class: `meter ${sign(value)}` });
      bar.style.setProperty("--share", `${(100 * Math.abs(value || 0)) / widest}%`);
      return [bar, h("b", { class: sign(value) }, show(value))];
    }
    return typeof value === "string" || name === "#" || name === "seed" ? String(value) : show(value);
  }

  /** Return episodes in the order of a column; those without a value are last. */
  function sorted(found, sort) {
    const name = sort.replace(/^-/, "");
    if (!COLUMNS.some(([one]) => one === name)) return found;
    const value = (i) => (name === "#" ? i : columns[name][i]);
    const down = sort.startsWith("-") ? -1 : 1;
    return found.sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      if (one === null || other === null) return (one === null) - (other === null) || a - b;
      return down * (typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other) || a - b;
    });
  }

  /** List the episodes that have all of these words, as they are found. */
  async function search(words, list) {
    const mine = searching;
    const found = [];
    for (const [number, first] of run.firsts.entries()) {
      const records = await unpacked(`records-${number}`);
      if (mine !== searching) return;
      records.forEach((record, k) => {
        const said = [...record.opening.map((one) => one.content), ...record.turns.flatMap((turn) => [turn.observation, turn.thinking, turn.answer])];
        const row = ["split", "policy", "env", "task", "ended"].map((name) => columns[name][first + k]);
        const all = [...row, ...said, text(record.last_observation), text(record.error)].join("\n").toLowerCase();
        if (words.every((word) => all.includes(word))) found.push(first + k);
      });
      list([...found], (number + 1) / run.firsts.length);
    }
  }

  /** Return why an episode has ended, or "failed" where it ended without the success that its environment declares. */
  const endOf = (i) => (columns.ended[i] === "ended" && columns.success[i] === false ? "failed" : columns.ended[i]);
  const dot = (ended) => h("i", { class: "dot", "data-ended": ended });

  // ------------------------------------------------------------------------------------------------------ an episode

  const HEAT = [0.9, 0.7, 0.5, 0.25, 0.1, 0.01]; // probabilities at which the next stronger colour begins
  const CREDITS = 3; // colours on either side of 0
  const SPECIAL = /^\s*(<\|[^|>]*\|>|<\/?s>|<(eos|bos|pad|unk|start_of_turn|end_of_turn)>|\[\/?INST\])\s*$/;
  const SHOWN = [
    "version", "env", "env_kwargs", "task", "split", "step", "group", "seat", "policy", "spec", "opening", "turns", "last_observation", "return", "success",
    "stop_reason", "error", "num_turns", "sampled_tokens", "segments", "advantages", "tokens",
  ]; // fields of a record that are not among the facts, or have a better name there

  async function episode(i, asTokens) {
    const [record, ...members] = await Promise.all([i, ...groupOf(i).slice(0, MEMBERS)].map(recordOf));
    const limit = creditLimit(members);
    const tokens = asTokens && record.tokens;
    const modes = [["Conversation", ""], ["Tokens", "/tokens"]].map(([label, end]) =>
      h("a", { href: `#/episode/${i}${end}`, "aria-current": Boolean(tokens) === Boolean(end) ? "true" : null }, label));
    const kind = columns.success[i] ? "good" : columns.return[i] === null ? "bad" : columns.success[i] === null ? "" : "warn";
    return h("div", { class: "episode" },
      h("div", { class: "talk" },
        h("div", { class: "talk-head" }, h("h1", {}, `Episode ${i}`), seatOf(i) && h("span", { class: "verdict" }, seatOf(i)),
          h("span", { class: `verdict ${kind}` }, dot(endOf(i)), columns.ended[i] || "–"),
          h("span", { class: `verdict ${sign(columns.return[i])}` }, `return ${show(columns.return[i])}`),
          record.tokens && h("nav", { class: "modes" }, modes)),
        legend([record], limit), tokens ? tokenView(record) : conversation(record, limit)),
      aside(i, record));
  }

  function conversation(record, limit) {
    // The last message of the opening ends with the first observation, which the first turn shows.
    const first = record.turns[0]?.observation || "";
    const opening = record.opening.map(({ role, content }, n) => [
      text(role), n === record.opening.length - 1 && content.endsWith(first) ? content.slice(0, content.length - first.length).trimEnd() : content,
    ]);
    return [
      ...opening.filter(([, content]) => content).map(([role, content]) => card(null, given(role, content))),
      ...record.turns.flatMap((_, k) => [
        ...record.segments.map((border, n) => border.turn === k && h("div", { class: "border" }, h("b", {}, `Segment ${n + 2}`), " the history changed what the model is shown")),
        turnCard(record, k, limit),
      ]),
      ending(record),
    ];
  }

  const card = (head, ...parts) => h("article", { class: "turn" }, head && h("div", { class: "turn-head" }, head), parts);
  const given = (who, content, note) => h("div", { class: `said ${who === "Error" ? "error" : "env"}` }, h("div", { class: "who" }, who, h("small", {}, note)), plain(content));
  const plain = (content) => (content ? h("pre", { class: "text" }, content) : h("pre", { class: "text empty" }, "said nothing"));

  function ending(record) {
    if (isThere(record.error)) return card(null, given("Error", text(record.error)));
    return isThere(record.last_observation) && card(null, given("Environment", text(record.last_observation), "at the end"));
  }

  function turnCard(record, k, limit) {
    const turn = record.turns[k];
    const advantage = record.advantages?.[k];
    const level = Math.round(Math.min(CREDITS, (CREDITS * Math.abs(advantage)) / limit)) * Math.sign(advantage);
    const head = [
      h("span", {}, `Turn ${k + 1}`),
      isNumber(advantage) && h("span", { class: "credit", title: "what this turn was trained with: better or worse than expected" }, "advantage ", h("b", {}, signed(advantage))),
      !turn.action_valid && h("span", { class: "flag" }, "invalid action"),
      isThere(turn.action) && turn.action !== turn.answer && h("span", { class: "read", title: "what was read from the answer" }, "action ", h("b", {}, text(turn.action))),
      h("span", { class: `reward ${sign(turn.reward)}`, title: "reward" }, signed(turn.reward)),
    ];
    const box = card(head, given("Environment", turn.observation), modelSaid(record.tokens, turn));
    box.dataset.turn = k;
    if (isNumber(level)) box.dataset.credit = level || 0;
    return box;
  }

  /** Return what the model said in a turn, in its tokens where they are known. */
  function modelSaid(tokens, turn) {
    const { start, stop, thinking, answer } = turn;
    const known = tokens?.texts && isNumber(start) && isNumber(stop);
    const place = known && thinking ? answerStart(tokens.texts, start, stop, answer) : start;
    const thought = known ? stream(tokens, start, place) : [thinking].filter(Boolean);
    const said = known ? stream(tokens, place, stop) : [answer].filter(Boolean);
    return h("div", { class: "said model" },
      h("div", { class: "who" }, "Model", known && h("small", {}, plural(stop - start, "token"))),
      thought.length > 0 && h("details", { class: "think" },
        h("summary", {}, "Thinking ", h("span", {}, known ? plural(place - start, "token") : plural(thinking.split(/\s+/).length, "word"))), plain(thought)),
      plain(said.length ? said : null));
  }

  /** Return the first token of the answer; those before it are thinking. */
  function answerStart(texts, start, stop, answer) {
    const whole = texts.slice(start, stop).join("");
    let left = answer ? whole.lastIndexOf(answer) : whole.length;
    let at = start;
    while (at < stop && left >= texts[at].length) left -= texts[at++].length;
    return at;
  }

  /** Return the elements of some tokens; a text is empty where a character belongs to a later token. */
  function stream(tokens, start, stop, raw = false) {
    return Array.from({ length: stop - start }, (_, k) => {
      const at = start + k;
      const content = tokens.texts ? tokens.texts[at] : `${tokens.ids[at]} `;
      const logprob = tokens.mask[at] ? tokens.logprobs?.[at] : null;
      const mask = raw ? (tokens.mask[at] ? "in" : "out") : "";
      const heat = isNumber(logprob) ? HEAT.filter((level) => Math.exp(logprob) <= level).length : null;
      return content && h("span", {
        class: ["tok", mask, SPECIAL.test(content) && "special"].filter(Boolean).join(" "), "data-i": at, "data-p": heat,
        onpointerover: (event) => pop(event, tokens.texts ? JSON.stringify(content) : "", [
          ["id", text(tokens.ids[at])], ["mask", String(tokens.mask[at])],
          ...(isNumber(logprob) ? [["logprob", logprob.toFixed(3)], ["probability", `${(100 * Math.exp(logprob)).toPrecision(3)} %`]] : []),
        ]),
        onpointerleave: unpop,
      }, raw ? content.replaceAll("\n", "↵\n") : content);
    }).filter(Boolean);
  }

  /** Return all tokens of an episode, segment by segment, as they were trained. */
  function tokenView({ tokens, segments }) {
    const raw = (title, kind, start, stop) => h("article", { class: "turn raw" }, h("div", { class: "turn-head" }, title),
      h("div", { class: `said ${kind}` }, h("pre", { class: "text" }, stream(tokens, start, stop, true))));
    const borders = [{ stop: 0 }, ...segments, { start: tokens.ids.length }];
    return [
      card("Prompt", h("div", { class: "said env" }, plain(tokens.prompt))),
      borders.slice(0, -1).flatMap((border, n) => {
        const [start, stop] = [border.stop, borders[n + 1].start];
        const sampled = tokens.mask.slice(start, stop).filter(Boolean).length;
        return [
          n > 0 && raw(`Prompt of segment ${n + 1} · ${plural(start - border.start, "token")}`, "env", border.start, start),
          raw(`Completion${n ? ` of segment ${n + 1}` : ""} · ${plural(stop - start, "token")}, ${count(sampled)} sampled`, "", start, stop),
        ];
      }),
      !tokens.texts && h("div", { class: "note" }, "These are ids: there is no tokenizer in the run's folder. gym-trl view --tokenizer FOLDER shows their text."),
    ];
  }

  function legend(records, limit) {
    const credits = Array.from({ length: 2 * CREDITS + 1 }, (_, k) => h("i", { "data-credit": k - CREDITS }));
    return h("div", { class: "legend" },
      h("span", {}, h("i", { class: "swatch model" }), "sampled, trained on (mask 1)"),
      h("span", {}, h("i", { class: "swatch env" }), "given by the environment (mask 0)"),
      records.some((one) => one.tokens?.logprobs) && h("span", { class: "scale" }, "likely ", [0, ...HEAT].map((_, level) => h("i", { class: "tok", "data-p": level })), " surprising"),
      limit > 0 && h("span", { class: "scale" }, `advantage ${show(-limit)} `, credits, ` +${show(limit)}`));
  }

  /** Return the largest advantage in a group, which has the strongest colour. */
  const creditLimit = (records) => Math.max(0, ...records.flatMap((one) => one.advantages || []).filter(isNumber).map(Math.abs));

  function aside(i, record) {
    const members = groupOf(i);
    const near = (by, label) => (isThere(neighbour(i, by)) ? h("a", { href: `#/episode/${neighbour(i, by)}` }, label) : h("span", {}, label));
    const facts = [
      ...["env", "task", "seed", "step", "split", "group", "seat", "policy", "turns", "tokens"].map((name) => [name, columns[name][i]]),
      ...Object.entries({ ...record.spec, ...record }).filter(([name]) => !SHOWN.includes(name)),
    ].filter(([, value]) => isThere(value) && value !== "");
    return h("aside", {},
      h("nav", { class: "steps" }, near(-1, "← previous"), near(1, "next →")),
      members.length > 1 && h("section", {}, h("h2", {}, `Group of ${members.length} on this task`, h("a", { href: `#/group/${i}` }, "side by side")),
        members.slice(0, MEMBERS).map((j) => h("a", { class: "member", href: `#/episode/${j}`, "aria-current": j === i ? "true" : null },
          dot(endOf(j)), h("span", {}, `${j} `, h("small", {}, seatOf(j) || columns.ended[j])), h("small", {}, plural(columns.turns[j], "turn")), h("b", { class: sign(columns.return[j]) }, show(columns.return[j]))))),
      h("section", {}, h("h2", {}, "Facts"), h("dl", {}, facts.flatMap(([name, value]) => [
        h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, isNumber(value) && name !== "seed" ? show(value) : text(value)),
      ]))));
  }

  /** Return the episode before or after one in the table, or among all if it is not in the table. */
  function neighbour(i, by) {
    const place = listed.indexOf(i);
    const other = place < 0 ? i + by : listed[place + by];
    return other >= 0 && other < total ? other : null;
  }

  // -------------------------------------------------------------------------------------------------------- a group

  const MEMBERS = 32; // at most shown

  async function group(i) {
    const all = groupOf(i);
    const members = all.slice(0, MEMBERS);
    const records = await Promise.all(members.map(recordOf));
    const limit = creditLimit(records);
    const rows = Math.max(...records.map((one) => one.turns.length));
    const grid = h("div", { class: "group" },
      members.map((j) => h("a", { class: "member-head", href: `#/episode/${j}`, "data-ended": endOf(j), "aria-current": j === i ? "true" : null },
        h("div", {}, h("b", { class: sign(columns.return[j]) }, show(columns.return[j])), h("span", {}, columns.ended[j])),
        h("div", {}, h("span", {}, [`Episode ${j}`, seatOf(j)].filter(Boolean).join(" · ")), h("span", { title: "its return less the mean of the group, or of its seat in the group" }, fromMean(j, all))))),
      Array.from({ length: rows }, (_, k) => records.map((one) => h("div", {}, k < one.turns.length && turnCard(one, k, limit)))),
      records.map((one) => h("div", {}, ending(one))));
    grid.style.setProperty("--members", members.length);
    return h("div", { class: "together" },
      h("div", { class: "bar" }, h("h1", {}, plural(members.length, "episode"), " on one task"),
        h("span", { class: "soft" }, [columns.env[i], columns.task[i], `seed ${columns.seed[i]}`, all.length > MEMBERS && `${all.length - MEMBERS} more`].filter(Boolean).join(" · ")),
        legend(records, limit)),
      h("div", { class: "group-scroll" }, grid));
  }

  function fromMean(j, members) {
    const level = mean(members.filter((k) => columns.seat[k] === columns.seat[j]).map((k) => columns.return[k]));
    return isNumber(columns.return[j]) ? `${signed(Number((columns.return[j] - level).toFixed(4)))} to mean` : null;
  }

  // ------------------------------------------------------------------------------------------------------ navigation

  let routed = 0;

  /** Show what the address says. */
  async function route() {
    const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
    const [name, number, part] = path.split("/");
    const mine = ++routed;
    unpop();
    searching += 1;
    for (const link of document.querySelectorAll("[data-tab]")) link.setAttribute("aria-current", (link.dataset.tab === "summary") === !name ? "page" : "false");
    let view;
    try {
      if (name === "episodes") view = episodes(new URLSearchParams(query));
      else if (!name) view = curves();
      else if (!(Number(number) in columns.return)) view = h("p", { class: "opening" }, `There is no episode ${number} in this run.`);
      else view = name === "group" ? await group(Number(number)) : await episode(Number(number), part === "tokens");
    } catch (error) {
      view = h("p", { class: "opening" }, `This cannot be shown: ${error.message}`);
    }
    if (mine !== routed) return; // another view was asked for meanwhile
    main.replaceChildren(view);
    main.scrollTop = history.state?.top || 0;
  }

  async function start() {
    run = await unpacked("index");
    columns = run.columns;
    total = columns.return.length;
    document.getElementById("name").textContent = run.name;
    document.getElementById("env").textContent = text(run.options.env || columns.env[0] || "");
    document.getElementById("total").textContent = count(total);
    await route();
    document.documentElement.dataset.episodes = total;
    if (run.refresh) setInterval(() => document.activeElement?.matches("input") || location.reload(), 1000 * run.refresh);
  }

  addEventListener("hashchange", route);
  addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const [, number, part] = location.hash.match(/^#\/episode\/(\d+)(\/tokens)?$/) || [];
    const other = by && number && !event.altKey && !event.ctrlKey && !event.metaKey ? neighbour(Number(number), by) : null;
    if (other !== null) location.hash = `#/episode/${other}${part || ""}`;
  });
  // The place in a view is kept with its address: for going back, and for reading the page again.
  let moved = 0;
  main.addEventListener("scroll", () => {
    unpop();
    clearTimeout(moved);
    moved = setTimeout(() => history.replaceState({ top: main.scrollTop }, ""), 150);
  }, { passive: true });
  start().catch((error) => main.replaceChildren(h("p", { class: "opening" }, `The run cannot be shown: ${error.message}`)));
})();
