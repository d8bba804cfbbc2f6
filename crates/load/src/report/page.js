// Interaction of the report: switches runs on and off in all charts, moves one cursor over the
// charts of a group, and saves a chart as SVG. The page can be read without this script.
'use strict';
(() => {
  document.documentElement.classList.add('js');
  const figures = [...document.querySelectorAll('figure.chart')];
  const data = new Map(figures.map((figure) =>
    [figure, JSON.parse(figure.querySelector('script').textContent)]));

  // --- switches

  function isOff(number) {
    const button = document.querySelector(`button[data-switch="${number}"]`);
    return button !== null && button.getAttribute('aria-pressed') === 'false';
  }

  document.addEventListener('click', (event) => {
    const button = event.target.closest('button[data-switch]');
    if (!button) return;
    const number = button.dataset.switch;
    const on = button.getAttribute('aria-pressed') === 'false';
    for (const other of document.querySelectorAll(`[data-switch="${number}"]`)) {
      if (other.tagName === 'BUTTON') other.setAttribute('aria-pressed', on);
      else other.classList.toggle('off', !on);
    }
  });

  // --- figures, formatted as key_figures.rs formats them

  const three = (v) => {
    const a = Math.abs(v);
    const text = v.toFixed(a >= 99.95 || a === 0 ? 0 : a >= 9.995 ? 1 : a >= 0.9995 ? 2 : 3);
    return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
  };
  const grouped = (v) => Math.round(v).toString().replace(/\B(?=(\d{3})+$)/g, ',');
  const write = {
    ms: (v) => (v < 0.9995 ? `${three(v * 1e3)} µs` : v < 999.5 ? `${three(v)} ms` : `${three(v / 1e3)} s`),
    rate: (v) => (v >= 100 ? grouped(v) : three(v)),
    count: (v) => (Math.abs(v) >= 100 ? grouped(v) : three(v)),
    s: (v) => `${three(v)} s`,
    percentile: (v) => `${(100 * (1 - 1 / v)).toFixed(6).replace(/\.?0+$/, '')} %`,
    bytes: (v) => {
      const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
      let unit = 0;
      while (Math.abs(v) >= 1023.5 && unit < units.length - 1) { v /= 1024; unit += 1; }
      return `${three(v)} ${units[unit]}`;
    },
  };

  // --- cursor

  const at = (axis, v) => axis.log
    ? Math.log(v / axis.min) / Math.log(axis.max / axis.min)
    : (v - axis.min) / (axis.max - axis.min);
  const from = (axis, place) => axis.log
    ? axis.min * (axis.max / axis.min) ** place
    : axis.min + place * (axis.max - axis.min);

  /** Returns the point of `line` nearest to x on this axis. Points are sorted by x. */
  function nearest(line, axis, x) {
    let low = 0, high = line.points.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (line.points[middle][0] < x) low = middle + 1; else high = middle;
    }
    const before = line.points[Math.max(0, low - 1)], after = line.points[low];
    if (!after) return undefined;
    return Math.abs(at(axis, before[0]) - at(axis, x)) < Math.abs(at(axis, after[0]) - at(axis, x)) ? before : after;
  }

  const visible = (chart) => chart.lines.filter((line) => line.switch === null || !isOff(line.switch));

  function tip() {
    let box = document.getElementById('tip');
    if (!box) {
      box = document.createElement('div');
      box.id = 'tip';
      box.setAttribute('role', 'status');
      document.body.append(box);
    }
    return box;
  }

  function draw(svg, chart, x) {
    const [left, top, width, height] = svg.dataset.plot.split(' ').map(Number);
    const place = left + at(chart.x, x) * width;
    const ns = 'http://www.w3.org/2000/svg';
    const line = document.createElementNS(ns, 'line');
    for (const [name, v] of Object.entries({ x1: place, x2: place, y1: top, y2: top + height })) line.setAttribute(name, v);
    const dots = visible(chart).flatMap((one) => {
      const point = nearest(one, chart.x, x);
      if (!point || point[1] === null || (chart.y.log && point[1] <= 0)) return [];
      const dot = document.createElementNS(ns, 'circle');
      dot.setAttribute('class', `c${one.colour}`);
      dot.setAttribute('cx', left + at(chart.x, point[0]) * width);
      dot.setAttribute('cy', top + height - at(chart.y, point[1]) * height);
      dot.setAttribute('r', 4);
      return [dot];
    });
    svg.querySelector('.cursor').replaceChildren(line, ...dots);
  }

  function row(line, chart, x) {
    const point = nearest(line, chart.x, x);
    if (!point || point[1] === null) return [];
    const row = document.createElement('div');
    const few = line.thin !== null && point[0] > line.thin;
    if (few) row.className = 'few';
    const name = document.createElement('span');
    name.className = `c${line.colour}`;
    name.textContent = line.name;
    const value = document.createElement('i');
    value.textContent = write[chart.y.unit](point[1]) + (few ? ' (few samples)' : '');
    row.append(name, value);
    return [row];
  }

  const group = (figure) => figures.filter((other) =>
    other === figure || (figure.dataset.group && other.dataset.group === figure.dataset.group));

  function show(figure, svg, x) {
    const chart = data.get(figure);
    const box = tip();
    const head = document.createElement('b');
    head.textContent = write[chart.x.unit](x);
    box.replaceChildren(head);
    for (const other of group(figure)) {
      const one = data.get(other);
      for (const drawing of other.querySelectorAll(':scope > svg')) draw(drawing, one, x);
      const rows = visible(one).flatMap((line) => row(line, one, x));
      if (other !== figure && rows.length === 1) rows[0].firstChild.textContent = one.title;
      box.append(...rows);
    }
    const bounds = svg.getBoundingClientRect();
    const [left, top, width] = svg.dataset.plot.split(' ').map(Number);
    const scale = bounds.width / svg.viewBox.baseVal.width;
    const place = bounds.left + (left + at(chart.x, x) * width) * scale;
    const right = place + 16 + box.offsetWidth < document.documentElement.clientWidth;
    const beside = right ? place + 14 : Math.max(4, place - box.offsetWidth - 14);
    box.style.left = `${beside + window.scrollX}px`;
    box.style.top = `${bounds.top + top * scale + window.scrollY}px`;
  }

  function hide(figure) {
    document.getElementById('tip')?.remove();
    for (const other of group(figure)) {
      for (const cursor of other.querySelectorAll('.cursor')) cursor.replaceChildren();
    }
  }

  for (const figure of figures) {
    const chart = data.get(figure);
    for (const svg of figure.querySelectorAll(':scope > svg')) {
      let x = null;
      /** Returns the x of the point nearest to `wanted`: the cursor jumps from point to point. */
      const snap = (wanted) => {
        const points = visible(chart).map((line) => nearest(line, chart.x, wanted)).filter(Boolean);
        const distance = (point) => Math.abs(at(chart.x, point[0]) - at(chart.x, wanted));
        return points.sort((a, b) => distance(a) - distance(b))[0]?.[0] ?? null;
      };
      const move = (wanted) => {
        x = snap(wanted);
        if (x !== null) show(figure, svg, x);
      };
      svg.addEventListener('pointermove', (event) => {
        const [left, , width] = svg.dataset.plot.split(' ').map(Number);
        const bounds = svg.getBoundingClientRect();
        const place = (event.clientX - bounds.left) * (svg.viewBox.baseVal.width / bounds.width);
        move(from(chart.x, Math.min(1, Math.max(0, (place - left) / width))));
      });
      for (const event of ['pointerleave', 'blur']) {
        svg.addEventListener(event, () => {
          x = null;
          hide(figure);
        });
      }
      svg.addEventListener('keydown', (event) => {
        const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (event.key === 'Escape') hide(figure);
        if (!by) return;
        event.preventDefault();
        const xs = [...new Set(visible(chart).flatMap((line) => line.points.map((point) => point[0])))]
          .filter((one) => one >= chart.x.min && one <= chart.x.max).sort((a, b) => a - b);
        const here = x === null ? (by > 0 ? -1 : xs.length) : xs.indexOf(x);
        move(xs[Math.min(xs.length - 1, Math.max(0, here + by * (event.shiftKey ? 10 : 1)))]);
      });
    }
  }

  // --- export

  /** Properties that a chart needs outside of this page, because the style sheet sets them here. */
  const PROPERTIES = ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'stroke-linecap', 'stroke-linejoin', 'opacity', 'font', 'text-anchor', 'display'];

  function standaloneSvg(figure) {
    const svg = figure.querySelector('svg.wide');
    const was = svg.style.display;
    // An element that is not displayed has no computed style.
    svg.style.display = 'block';
    const copy = svg.cloneNode(true);
    const pairs = [[svg, copy]];
    while (pairs.length > 0) {
      const [one, other] = pairs.pop();
      const style = getComputedStyle(one);
      if (one !== svg) for (const name of PROPERTIES) other.style.setProperty(name, style.getPropertyValue(name));
      for (let i = 0; i < one.children.length; i += 1) pairs.push([one.children[i], other.children[i]]);
    }
    svg.style.display = was;
    copy.querySelector('.cursor')?.remove();
    const [, , width, height] = svg.getAttribute('viewBox').split(' ');
    copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
    copy.setAttribute('width', width);
    copy.setAttribute('height', height);
    copy.style.background = getComputedStyle(document.body).backgroundColor;
    return new XMLSerializer().serializeToString(copy);
  }

  for (const figure of figures) {
    const button = figure.querySelector('.export');
    button.hidden = false;
    button.setAttribute('aria-label', `Save "${data.get(figure).title}" as SVG`);
    button.addEventListener('click', () => {
      const link = document.createElement('a');
      link.href = URL.createObjectURL(new Blob([standaloneSvg(figure)], { type: 'image/svg+xml' }));
      link.download = `${figure.id}.svg`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  // --- a link to a run unfolds the run

  function unfold() {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === 'DETAILS') target.open = true;
  }
  addEventListener('hashchange', unfold);
  unfold();
})();
