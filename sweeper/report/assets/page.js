"use strict";
(() => {
  const themes = JSON.parse(document.getElementById("themes").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const PRINT_WIDTH = 680;
  const config = {
    responsive: true,
    displaylogo: false,
    showTips: false,
    typesetMath: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const boxes = Array.from(document.querySelectorAll(".plot"));
  const drawn = new Set();

  function draw(box, printing = false) {
    const source = document.querySelector(`script[data-for="${CSS.escape(box.id)}"]`);
    const figure = JSON.parse(source.textContent);
    const layout = figure.layout;
    layout.template = dark.matches && !printing ? themes.dark : themes.light;
    layout.autosize = true;
    if (printing) layout.width = PRINT_WIDTH;
    const width = printing ? PRINT_WIDTH : box.clientWidth;
    if (width < 480) {
      layout.font = { size: 11 };
      layout.legend = Object.assign({}, layout.legend, { font: { size: 10 } });
      layout.dragmode = false; // one finger scrolls the page
      layout.modebar = { remove: ["toImage", "zoom", "pan", "zoomIn", "zoomOut", "resetScale"] };
      for (const note of layout.annotations || []) {
        if (note.name === "simulated") note.font.size = 34;
      }
    }
    drawn.add(box);
    const name = { toImageButtonOptions: { filename: box.id, scale: 2 } };
    return window.Plotly.react(box, figure.data, layout, Object.assign(name, config));
  }

  function failed(box) {
    box.textContent = "This figure could not be drawn.";
  }

  function show(box) {
    if (drawn.has(box)) return;
    try {
      Promise.resolve(draw(box)).catch(() => failed(box));
    } catch (error) {
      failed(box);
    }
  }

  // Figures are drawn when they come near, so that a long page opens at once.
  if (!window.Plotly) {
    boxes.forEach(failed);
  } else if ("IntersectionObserver" in window) {
    const watcher = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (!entry.isIntersecting) continue;
          watcher.unobserve(entry.target);
          show(entry.target);
        }
      },
      { rootMargin: "800px 0px" },
    );
    boxes.forEach((box) => watcher.observe(box));
  } else {
    boxes.forEach(show);
  }

  dark.addEventListener("change", () => drawn.forEach((box) => draw(box)));

  let closed = [];
  window.addEventListener("beforeprint", () => {
    if (window.Plotly) boxes.forEach((box) => draw(box, true));
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    closed.forEach((item) => { item.open = true; });
  });
  window.addEventListener("afterprint", () => {
    if (window.Plotly) boxes.forEach((box) => draw(box));
    closed.forEach((item) => { item.open = false; });
  });

  // Pages opened from a disk may lack navigator.clipboard; the old way needs a selection.
  function copyBySelection(text) {
    const area = document.createElement("textarea");
    area.value = text;
    area.readOnly = true;
    area.style.position = "fixed";
    area.style.opacity = "0";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }

  async function copy(button) {
    const text = button.dataset.copy;
    let done = false;
    try {
      await navigator.clipboard.writeText(text);
      done = true;
    } catch (error) {
      done = copyBySelection(text);
    }
    const words = done ? "Copied" : "Press Ctrl+C";
    if (!done) window.getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
    button.textContent = words;
    document.getElementById("status").textContent = words;
    window.setTimeout(() => { button.textContent = "Copy"; }, 2500);
    button.focus();
  }

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", () => copy(button));
  }
  document.documentElement.dataset.ready = "yes";
})();
