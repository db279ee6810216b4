"use strict";
// Draws the charts of the page. Each chart's element gets `data-drawn`, how many points lie within it.
(() => {
  const charts = JSON.parse(document.getElementById("data").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => {
    if (value < 0.005) return "0";
    if (value < 10) return value.toFixed(2);
    if (value < 100) return value.toFixed(1);
    return Math.round(value).toLocaleString("en-US");
  };
  const element = (tag, text) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Lines may lack places that others have.
  const aligned = (chart) => {
    const places = chart.x.places;
    const columns = chart.lines.map((line) => {
      const at = new Map(line.points.map((point) => [point[0], point]));
      return places.map((x) => at.get(x) ?? null);
    });
    return [places, ...columns.map((column) => column.map((point) => (point ? point[1] : null)))];
  };

  // A whisker from the lower to the upper end of each point's interval.
  const whiskers = (chart) => (plot) => {
    const context = plot.ctx;
    context.save();
    context.beginPath();
    context.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
    context.clip();
    chart.lines.forEach((line, at) => {
      const series = plot.series[at + 1];
      if (!series.show) return;
      context.strokeStyle = series.stroke();
      context.lineWidth = 1.5 * devicePixelRatio;
      context.globalAlpha = 0.65;
      for (const [x, , low, high] of line.points) {
        const left = plot.valToPos(x, "x", true);
        context.beginPath();
        context.moveTo(left, plot.valToPos(low, "y", true));
        context.lineTo(left, plot.valToPos(high, "y", true));
        context.stroke();
      }
    });
    context.restore();
  };

  const count = (chart, holder) => (plot) => {
    const { left, top, width, height } = plot.bbox;
    let drawn = 0;
    for (const line of chart.lines) {
      for (const [x, y] of line.points) {
        const [right, down] = [plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)];
        if (right >= left && right <= left + width && down >= top && down <= top + height) drawn += 1;
      }
    }
    holder.dataset.drawn = drawn;
  };

  const tip = (chart) => {
    const box = element("div");
    box.className = "tip";
    const show = (plot) => {
      const { idx, left, top } = plot.cursor;
      if (idx == null || left < 0) {
        box.style.display = "none";
        return;
      }
      box.replaceChildren(element("strong", `${chart.x.label.replace(/ \(.*/, "")}: ${chart.x.texts[idx]}`));
      chart.lines.forEach((line, at) => {
        const point = line.points.find((candidate) => candidate[0] === chart.x.places[idx]);
        if (!point || !plot.series[at + 1].show) return;
        const row = element("div");
        const name = element("span", line.label);
        name.style.color = plot.series[at + 1].stroke();
        row.append(name, element("span", `${number(point[1])} ${chart.y.unit} (${number(point[2])} to ${number(point[3])})`));
        box.append(row);
      });
      box.style.display = "block";
      const room = plot.over.clientWidth - box.offsetWidth - 4;
      const wanted = left + 16 > room ? left - box.offsetWidth - 16 : left + 16;
      box.style.left = `${Math.max(0, Math.min(wanted, room))}px`;
      box.style.top = `${Math.max(0, Math.min(top + 12, plot.over.clientHeight - box.offsetHeight))}px`;
    };
    return { hooks: { init: (plot) => plot.over.append(box), setCursor: show } };
  };

  const xRange = (chart) => {
    const [first, last] = [chart.x.places[0], chart.x.places[chart.x.places.length - 1]];
    if (chart.x.is_logarithmic) return [first / 1.2, last * 1.2];
    const pad = Math.max((last - first) * 0.05, 0.2);
    return [first - pad, last + pad];
  };

  // Room for all medians, and for whiskers that are not far longer than what they belong to.
  const yRange = (chart) => {
    const reach = 2.5;
    const ends = ([, y, low, high]) => [Math.max(low, y / reach), Math.min(high, y * reach), y];
    const values = chart.lines.flatMap((line) => line.points.flatMap(ends)).filter((value) => value > 0);
    return [Math.min(...values) / 1.25, Math.max(...values) * 1.25];
  };

  // 1, 2 and 5 of each power of ten within the range; only powers where those are many.
  const ySplits = (plot, axis, low, high) => {
    const decades = Math.log10(high / low);
    const steps = decades > 3.5 ? [1] : decades > 1 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 8];
    const splits = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const step of steps) {
        const value = Number((step * 10 ** power).toPrecision(6));
        if (value >= low && value <= high) splits.push(value);
      }
    }
    return splits;
  };

  const draw = (chart, holder) => {
    const width = holder.clientWidth;
    const axis = { stroke: color("--quiet"), grid: { stroke: color("--grid"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
    const skip = Math.ceil(chart.x.places.length / Math.max(1, Math.floor((width - 70) / 44)));
    const series = chart.lines.map((line) => {
      const stroke = line.color.startsWith("--") ? color(line.color) : line.color;
      return {
        label: line.label,
        stroke,
        width: line.is_floor ? 1.5 : 2.25,
        dash: line.is_floor ? [6, 5] : undefined,
        spanGaps: true,
        points: { show: true, size: line.is_floor ? 5 : 8, fill: line.is_floor ? color("--page") : stroke },
      };
    });
    const { hooks: tips } = tip(chart);
    const options = {
      width,
      height: width < 560 ? 300 : 380,
      scales: {
        x: { time: false, distr: chart.x.is_logarithmic ? 3 : 1, log: 2, range: () => xRange(chart) },
        y: { distr: 3, log: 10, range: () => yRange(chart) },
      },
      axes: [
        { ...axis, label: chart.x.label, labelSize: 24, size: 34, splits: () => chart.x.places,
          filter: (_, splits) => splits, values: () => chart.x.ticks.map((tick, at) => (at % skip === 0 ? tick : null)) },
        { ...axis, label: chart.y.label, labelSize: 24, size: 62, splits: ySplits, filter: (_, splits) => splits,
          values: (_, splits) => splits.map((value) => (value >= 1 ? value.toLocaleString("en-US") : String(value))) },
      ],
      series: [{}, ...series],
      legend: { live: false, markers: { width: 3, dash: (_, at) => (chart.lines[at - 1]?.is_floor ? "dashed" : "solid") } },
      cursor: { y: false, drag: { x: false, y: false } },
      hooks: { init: [tips.init], setCursor: [tips.setCursor], draw: [whiskers(chart), count(chart, holder)] },
    };
    holder.replaceChildren();
    return new uPlot(options, aligned(chart), holder);
  };

  const holders = [...document.querySelectorAll("[data-chart]")];
  const drawIn = (holder) => {
    widths.set(holder, holder.clientWidth);
    draw(charts.find((chart) => chart.id === holder.dataset.chart), holder);
  };
  const drawAll = () => holders.forEach(drawIn);

  // A chart is as wide as its place, whatever changes that.
  const widths = new WeakMap();
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (widths.get(target) !== target.clientWidth) drawIn(target);
    }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
  holders.forEach((holder) => observer.observe(holder));
})();
