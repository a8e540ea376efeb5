// The timeline of host and GPU on a canvas. Spans narrower than a pixel are added up, so that
// a hundred thousand of them are drawn at once.
wavecastParts.push((root, data, subject) => {
  const place = root.querySelector(`.timeline[data-subject="${CSS.escape(subject)}"]`);
  const line = data.subjects[subject].timeline;
  if (!place || !line) return [];
  const canvas = place.querySelector("canvas"), reading = place.querySelector(".reading");
  const modules = [];
  for (let index = 0; index < line.module.length; index += 2) {
    for (let again = line.module[index + 1]; again > 0; again -= 1) modules.push(line.module[index]);
  }
  const rows = line.rows.map(row => {
    const count = row.gap.length, begin = new Float64Array(count), end = new Float64Array(count), call = new Int32Array(count);
    let at = 0, who = 0;
    for (let index = 0; index < count; index += 1) {
      begin[index] = at + row.gap[index];
      end[index] = begin[index] + row.length[index];
      at = end[index];
      call[index] = who += row.call[index];
    }
    return { name: row.name, begin, end, call, joined: row.joined };
  });
  const end = Math.max(line.end, line.step), rowHeight = 40, gap = 22, top = 46;
  let from = 0, to = end, chosen = null, drag = null;
  const opOf = call => line.ops[line.op[call]];
  const textOf = (row, index) => {
    const call = row.call[index], module = data.names[modules[call]];
    const size = row.joined > 1 ? `up to ${row.joined} calls, the longest ` : "";
    return `${row.name}: ${size}${data.names[opOf(call)[0]]}${module ? ` of ${module}` : ""}, `
      + `${wavecastTime((row.end[index] - row.begin[index]) * line.unit)} from ${wavecastTime(row.begin[index] * line.unit)} on`;
  };
  function firstAfter(row, time) {  // the first span that ends after a time
    let low = 0, high = row.end.length;
    while (low < high) { const middle = (low + high) >> 1; if (row.end[middle] <= time) low = middle + 1; else high = middle; }
    return low;
  }
  function draw() {
    const width = canvas.clientWidth, height = top + rows.length * (rowHeight + gap) + 4, sharp = devicePixelRatio || 1;
    if (!width) return;
    canvas.width = Math.round(width * sharp);
    canvas.height = Math.round(height * sharp);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const colors = wavecastColors(root), ink = style.color, faint = getComputedStyle(reading).color;
    pen.scale(sharp, sharp);
    pen.font = "12px system-ui, sans-serif";
    const x = time => (time - from) / (to - from) * width;
    drawScale(pen, x, width, height, faint);
    pen.textBaseline = "middle";
    rows.forEach((row, index) => {
      const y = top + gap + index * (rowHeight + gap);
      pen.fillStyle = faint;
      pen.fillText(row.name, 4, y - 11);
      pen.globalAlpha = .1;
      pen.fillRect(0, y, width, rowHeight);
      pen.globalAlpha = 1;
      drawRow(pen, row, x, width, y, colors, ink);
      if (index === 0) drawWaits(pen, x, width, y, faint);
    });
    if (chosen) {
      const row = rows[chosen.row], y = top + gap + chosen.row * (rowHeight + gap);
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      const left = x(row.begin[chosen.index]);
      pen.strokeRect(left, y - 1, Math.max(3, x(row.end[chosen.index]) - left), rowHeight + 2);
    }
  }
  function drawScale(pen, x, width, height, faint) {
    const rough = (to - from) / Math.max(2, width / 130), size = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(factor => factor * size).find(each => each >= rough);
    pen.fillStyle = pen.strokeStyle = faint;
    pen.lineWidth = 1;
    pen.textBaseline = "top";
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const at = Math.round(x(time)) + .5;
      pen.globalAlpha = .25;
      pen.beginPath(); pen.moveTo(at, 0); pen.lineTo(at, height); pen.stroke();
      pen.globalAlpha = 1;
      if (at < width - 44) pen.fillText(time ? wavecastTime(time * line.unit) : "0", at + 4, 3);
    }
    for (const [phase, first, last] of line.phase) {
      const left = Math.max(0, x(first)), right = Math.min(width, x(last));
      if (right - left < 2) continue;
      pen.globalAlpha = .18;
      pen.fillRect(left, 22, right - left - 1, 18);
      pen.globalAlpha = 1;
      if (right - left > pen.measureText(phase).width + 12) pen.fillText(phase, left + 6, 25);
    }
    const last = Math.round(x(line.step)) + .5;
    pen.setLineDash([4, 3]);
    pen.beginPath(); pen.moveTo(last, 0); pen.lineTo(last, height); pen.stroke();
    pen.setLineDash([]);
  }
  function drawRow(pen, row, x, width, y, colors, ink) {
    const covered = new Float32Array(width + 1), longest = new Float32Array(width + 1), color = new Int8Array(width + 1);
    for (let index = firstAfter(row, from); index < row.begin.length && row.begin[index] < to; index += 1) {
      const left = Math.max(0, x(row.begin[index])), right = Math.min(width, x(row.end[index]));
      const [name, hue] = opOf(row.call[index]);
      if (right - left >= 2) {
        pen.fillStyle = colors[hue];
        pen.fillRect(left, y, right - left - .6, rowHeight);
        if (right - left > 44) label(pen, data.names[name], left, right, y, ink);
        continue;
      }
      const pixel = Math.floor(left), size = right - left;
      covered[pixel] += size;
      if (size >= longest[pixel]) { longest[pixel] = size; color[pixel] = hue; }
    }
    for (let pixel = 0; pixel <= width; pixel += 1) {
      if (!covered[pixel]) continue;
      pen.globalAlpha = .25 + .75 * Math.min(1, covered[pixel]);
      pen.fillStyle = colors[color[pixel]];
      pen.fillRect(pixel, y, 1, rowHeight);
    }
    pen.globalAlpha = 1;
  }
  function label(pen, text, left, right, y, ink) {
    const short = text.replace(/^aten\./, "");
    pen.save();
    pen.beginPath(); pen.rect(left, y, right - left - 3, rowHeight); pen.clip();
    pen.fillStyle = "#fff";
    pen.shadowColor = "rgba(0,0,0,.55)";
    pen.shadowBlur = 3;
    pen.fillText(short, left + 5, y + rowHeight / 2);
    pen.restore();
  }
  function drawWaits(pen, x, width, y, faint) {
    pen.strokeStyle = faint;
    pen.lineWidth = 1;
    for (const [begin, length] of line.waits) {
      const left = Math.max(0, x(begin)), right = Math.min(width, x(begin + length));
      if (right - left < 1.5) continue;
      pen.setLineDash([2, 3]);
      pen.strokeRect(left + .5, y + .5, right - left - 1, rowHeight - 1);
      pen.setLineDash([]);
      pen.fillStyle = faint;
      if (right - left > 110) pen.fillText("waits for the GPU", left + 6, y + rowHeight / 2);
    }
  }
  function show(first, last) {
    const size = Math.min(end, Math.max(last - first, 20));
    from = Math.max(0, Math.min(first, end - size));
    to = from + size;
    draw();
  }
  const zoom = (factor, at = (from + to) / 2) => show(at - (at - from) * factor, at + (to - at) * factor);
  const move = share => show(from + share * (to - from), to + share * (to - from));
  function choose(rowIndex, index) {
    const row = rows[rowIndex];
    if (!row || index < 0 || index >= row.begin.length) return;
    chosen = { row: rowIndex, index };
    reading.textContent = textOf(row, index);
    const [begin, last] = [row.begin[index], row.end[index]];
    if (last < from || begin > to) show(begin - (to - from) / 2, begin + (to - from) / 2); else draw();
  }
  function step(by) {
    if (chosen) choose(chosen.row, chosen.index + by);
    else choose(Math.min(1, rows.length - 1), firstAfter(rows[Math.min(1, rows.length - 1)], from));
  }
  function changeRow(by) {
    const now = chosen ? chosen.row : 0, row = Math.max(0, Math.min(rows.length - 1, now + by));
    const time = chosen ? rows[now].begin[chosen.index] : from;
    choose(row, Math.min(firstAfter(rows[row], time), rows[row].begin.length - 1));
  }
  const does = {
    "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), ArrowLeft: () => move(-.2), ArrowRight: () => move(.2),
    Home: () => show(0, end), "0": () => show(0, end), ".": () => step(1), ",": () => step(-1),
    PageUp: () => changeRow(-1), PageDown: () => changeRow(1),
  };
  canvas.addEventListener("keydown", event => {
    if (!(event.key in does) || event.ctrlKey || event.metaKey) return;
    does[event.key]();
    event.preventDefault();
  });
  const buttons = { in: "+", out: "-", left: "ArrowLeft", right: "ArrowRight", all: "Home" };
  for (const button of place.querySelectorAll("button")) button.addEventListener("click", () => does[buttons[button.dataset.do]]());
  const timeAt = event => from + (event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth * (to - from);
  function spanAt(event) {
    const inside = event.clientY - canvas.getBoundingClientRect().top - top - gap, index = Math.floor(inside / (rowHeight + gap));
    const row = rows[index];
    if (!row || inside - index * (rowHeight + gap) > rowHeight) return null;
    const time = timeAt(event), near = (to - from) / canvas.clientWidth, found = firstAfter(row, time - near);
    return found < row.begin.length && row.begin[found] <= time + near ? { row: index, index: found } : null;
  }
  canvas.addEventListener("wheel", event => {
    if (event.shiftKey) move(Math.sign(event.deltaY || event.deltaX) * .15);
    else if (event.ctrlKey || document.activeElement === canvas) zoom(event.deltaY > 0 ? 1.3 : .77, timeAt(event));
    else return;  // the page scrolls, unless the timeline was clicked
    event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", event => {
    drag = { x: event.clientX, from, to, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (drag) {
      const by = (drag.x - event.clientX) / canvas.clientWidth * (drag.to - drag.from);
      drag.moved = drag.moved || Math.abs(event.clientX - drag.x) > 3;
      if (drag.moved) show(drag.from + by, drag.to + by);
      wavecastTip.hide();
      return;
    }
    const over = spanAt(event);
    if (over) wavecastTip.show(textOf(rows[over.row], over.index), event.clientX, event.clientY, root);
    else wavecastTip.hide();
  });
  canvas.addEventListener("pointerup", event => {
    const over = drag && !drag.moved ? spanAt(event) : null;
    drag = null;
    if (over) choose(over.row, over.index);
  });
  canvas.addEventListener("pointerleave", () => wavecastTip.hide());
  return [{ subject, draw }];
});
