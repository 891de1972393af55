"use strict";
/* What every page needs: nodes made from text, numbers for people, controls, a theme. No HTML is ever parsed. */
const page = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (name === "css") for (const [rule, text] of Object.entries(value)) node.style.setProperty(rule, text);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }

  /* An HTML element. Children are nodes or text; text stays text. `on` holds listeners, `css` style properties. */
  const el = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
  /* The same for a part of an SVG picture. */
  const svg = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

  const data = JSON.parse(document.getElementById("data").textContent);
  const body = (id) => document.querySelector(`#${CSS.escape(id)} > .body`);

  /* Numbers for people, as hasfl/units.py writes them. */
  const digits = (value, count = 3) => String(Number(value.toPrecision(count)));
  function seconds(value) {
    if (value < 1) {
      const units = [["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
      const [name, size] = units.find(([, least]) => value >= least) ?? units[value > 0 ? 2 : 0];
      return `${digits(value / size)} ${name}`;
    }
    if (value < 60) return `${digits(value)} s`;
    const whole = Math.round(value), two = (n) => String(n).padStart(2, "0");
    const minutes = Math.floor(whole / 60), hours = Math.floor(minutes / 60);
    if (minutes < 60) return `${minutes} min ${two(whole % 60)} s`;
    if (hours < 48) return `${hours} h ${two(minutes % 60)} min`;
    return `${Math.floor(hours / 24)} d ${two(hours % 24)} h`;
  }
  function prefixed(value, prefixes, unit) {
    const [name, size] = prefixes.findLast(([, least]) => Math.abs(value) >= least) ?? ["", 1];
    return `${digits(value / size)} ${name}${unit}`;
  }
  const DECIMAL = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12], ["P", 1e15]];
  const BINARY = [["", 1], ["Ki", 2 ** 10], ["Mi", 2 ** 20], ["Gi", 2 ** 30], ["Ti", 2 ** 40]];
  const quantity = (value, unit) => prefixed(value, DECIMAL, unit);
  const size = (bits) => prefixed(bits / 8, BINARY, "B");
  const share = (value) => (value < 0.1 ? `${(100 * value).toFixed(1)} %` : `${Math.round(100 * value)} %`);
  const count = (value) => value.toLocaleString("en-US");

  /* Controls: all of them work with the keyboard, because all of them are the browser's own. */
  let made = 0;
  function choice(label, options, act) {
    const group = `choice${++made}`;
    const buttons = options.map((name, k) =>
      el("label", {},
        el("input", {type: "radio", name: group, value: name, checked: k === 0, on: {change: () => act(name)}}),
        el("span", {}, name)));
    return el("fieldset", {class: "choice"}, el("legend", {}, label), el("div", {class: "options"}, buttons));
  }
  function select(label, options, act) {
    const box = el("select", {on: {change: () => act(box.selectedIndex)}},
      options.map((name) => el("option", {}, name)));
    return el("label", {class: "field"}, label, box);
  }
  /* A slider over positions 0 to count − 1; `say(k)` is the text beside it. `slider.move(k)` moves it without an act. */
  function slider(label, positions, say, act) {
    const id = `slider${++made}`, shown = el("output", {for: id}, say(0));
    const input = el("input", {type: "range", id, min: 0, max: positions - 1, step: 1, value: 0,
      "aria-valuetext": say(0)});
    const tell = () => {
      shown.textContent = say(input.valueAsNumber);
      input.setAttribute("aria-valuetext", say(input.valueAsNumber));
    };
    input.addEventListener("input", () => {
      tell();
      act(input.valueAsNumber);
    });
    const whole = el("div", {class: "slider"}, el("label", {for: id}, label), input, shown);
    whole.move = (k) => {
      input.valueAsNumber = k;
      tell();
    };
    return whole;
  }

  const LONG_NAME = 20; // letters of a heading that need a wide column
  /* A table; `columns` are {name, words}, rows are lists of text or nodes, `strong(k)` marks rows. */
  function table(columns, rows, strong = () => false) {
    const kind = (k) => (columns[k].words ? "words" : columns[k].name.length > LONG_NAME ? "long" : null);
    return el("div", {class: "wide", tabindex: 0, role: "region", "aria-label": "A table; it may scroll sideways"},
      el("table", {},
        el("thead", {}, el("tr", {}, columns.map((column, k) => el("th", {scope: "col", class: kind(k)}, column.name)))),
        el("tbody", {}, rows.map((row, r) => el("tr", {class: strong(r) ? "strong" : null},
          row.map((cell, k) => el("td", {class: kind(k)}, cell)))))));
  }

  /* A place for a chart, which `draw(width, host)` fills anew when its width changes. */
  function sized(draw, label) {
    const host = el("div", {class: "chart", role: "img", "aria-label": label});
    let width = 0;
    host.redraw = (wanted = width) => {
      if (wanted) draw(wanted, host);
    };
    new ResizeObserver(([entry]) => {
      const now = Math.floor(entry.contentRect.width);
      if (now && now !== width) {
        width = now;
        host.redraw();
      }
    }).observe(host);
    return host;
  }
  /* A chart of our own: `draw(width, host)` returns an SVG node. */
  const chart = (draw, label) => sized((width, host) => host.replaceChildren(draw(width, host)), label);
  /* A box of text beside the pointer. */
  function tip(host, text, x, y) {
    hideTip(host);
    const box = el("div", {class: "tip", role: "status"}, text);
    host.append(box);
    const left = Math.min(Math.max(0, x + 14), host.clientWidth - box.offsetWidth);
    box.style.setProperty("left", `${Math.max(0, left)}px`);
    box.style.setProperty("top", `${y + 16}px`);
  }
  const hideTip = (host) => host.querySelectorAll(".tip").forEach((box) => box.remove());

  /* Ticks at 1, 2 or 5 times a power of ten. */
  function ticks(low, high, most) {
    const raw = (high - low) / Math.max(1, most);
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) * power;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) found.push(Number((k * step).toPrecision(12)));
    return found;
  }
  /* One unit for a whole time axis: its name, and its seconds. */
  const timeUnit = (longest) =>
    [["µs", 1e-6, 1e-3], ["ms", 1e-3, 1], ["s", 1, 600], ["min", 60, 36000], ["h", 3600, Infinity]]
      .find(([, , below]) => longest < below);

  /* The look: light, dark, or on paper. Styles follow by themselves; what holds colours asks to be told. */
  const root = document.documentElement, listeners = [];
  const onLook = (act) => listeners.push(act);
  const tell = (paper) => listeners.forEach((act) => act(paper));
  const theme = (name) => {
    if (name) root.dataset.theme = name;
    else delete root.dataset.theme;
  };
  document.getElementById("tools").append(choice("Theme", ["Auto", "Light", "Dark"], (name) => {
    theme(name === "Auto" ? "" : name.toLowerCase());
    tell(false);
  }));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => tell(false));
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.dataset.theme ?? "";
    theme("light");
    tell(true);
  });
  addEventListener("afterprint", () => {
    theme(before);
    tell(false);
  });
  /* A colour of page.css as it looks now, for instance colour("ink"). */
  function colour(name) {
    const probe = el("span", {css: {color: `var(--${name})`}});
    root.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  return {el, svg, data, body, digits, seconds, quantity, size, share, count, choice, select, slider, table,
    sized, chart, tip, hideTip, ticks, timeUnit, onLook, colour};
})();
