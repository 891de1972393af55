"use strict";
/* A value of every device over the rounds: a row for each device, a darker cell for a larger value. */
const strips = (() => {
  const {svg} = page;
  const SIDE = 84, LETTER = 7.2, MANY = 30; // pixels of a column beside the names, and of a letter; rows that are many

  /* `rows` are names, `cells(r)` lists {from, to, value, text}; rounds run from `first` to `last`. `sides` are columns of
     text beside the names, `tips(r, cell)` is the text beside the pointer. */
  function draw({rows, cells, first, last, most, label, sides, tips}) {
    return page.chart((width, host) => {
      const tall = rows.length > MANY ? 14 : 22, top = 4, bottom = top + rows.length * tall, side = width >= 640 ? sides : [];
      const labels = Math.min(Math.max(...rows.map((name) => name.length)) * LETTER + 12, width * 0.3, 190);
      const left = labels + side.length * SIDE, letters = Math.max(3, Math.floor((labels - 8) / 7));
      const x = (value) => left + ((value - first) / (last - first || 1)) * (width - left - 2);
      const picture = svg("svg", {viewBox: `0 0 ${width} ${bottom + 22}`, height: bottom + 22, "aria-hidden": "true"});
      const write = (text, at, y, attributes) => picture.append(svg("text", {x: at, y, ...attributes}, text));
      rows.forEach((name, r) => {
        const y = top + r * tall, middle = y + tall / 2 + 4;
        write(name.length > letters ? `${name.slice(0, letters - 1)}…` : name, 0, middle, {class: "name"});
        side.forEach((texts, k) => write(texts[r], labels + (k + 1) * SIDE - 10, middle, {"text-anchor": "end"}));
        for (const cell of cells(r)) {
          const space = cell.to - cell.from > (last - first) / 80 ? 1 : 0;
          const wide = Math.max(0.5, x(cell.to) - x(cell.from) - space);
          picture.append(svg("rect", {x: x(cell.from), y: y + 1, width: wide, height: tall - 2, class: cell.value ? "bar c0" : "hatch",
            "fill-opacity": cell.value ? (0.06 + (0.5 * cell.value) / most).toFixed(2) : 1}));
          if (wide > 7 * cell.text.length + 6 && tall > 16) {
            write(cell.text, x(cell.from) + wide / 2, middle, {"text-anchor": "middle", class: "name"});
          }
        }
      });
      for (const tick of page.ticks(first, last, width < 500 ? 4 : 8)) {
        write(page.count(tick), x(tick), bottom + 16, {"text-anchor": x(tick) > width - 24 ? "end" : "middle"});
      }
      picture.addEventListener("pointermove", (event) => {
        const box = picture.getBoundingClientRect(), r = Math.floor((event.clientY - box.top - top) / tall);
        const where = first + ((event.clientX - box.left - left) / (width - left - 2)) * (last - first);
        const cell = rows[r] === undefined ? null : cells(r).find(({from, to}) => from <= where && where < to);
        if (cell) page.tip(host, tips(r, cell), event.clientX - box.left, event.clientY - box.top);
        else page.hideTip(host);
      });
      picture.addEventListener("pointerleave", () => page.hideTip(host));
      return picture;
    }, label);
  }

  return {draw};
})();
