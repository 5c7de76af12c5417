// Charts are drawn one after another, those on the first screen first, so that the page can be read at once.
const NARROW = 640; // pixels
const charts = [...document.querySelectorAll("script[data-chart]")];
const draw = (source) => {
  const figure = JSON.parse(source.textContent);
  source.remove();
  const hidden = new Set(
    [...document.querySelectorAll('.keys button[aria-pressed="false"]')].map((button) => button.dataset.strategy));
  figure.data.forEach((line) => { if (hidden.has(line.meta)) line.visible = false; });
  // Beside a narrow chart a legend would take half of its width.
  if (innerWidth < NARROW && figure.layout.legend?.traceorder) {
    figure.layout.legend = { orientation: "h", y: -0.12, yanchor: "top", x: 0 };
  }
  const touch = matchMedia("(hover: none)").matches;
  Plotly.newPlot(`chart-${source.dataset.chart}`, figure.data, figure.layout, {
    responsive: true, displaylogo: false, displayModeBar: touch ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d"],
    toImageButtonOptions: { filename: `${document.title} ${source.dataset.chart}` },
  });
};
const drawNext = () => {
  const source = charts.shift();
  if (!source) return;
  draw(source);
  setTimeout(drawNext, 0);
};
setTimeout(drawNext, 0);

// The browser's print dialog saves a page as PDF. Inside a frame it would print the frame alone.
const save = document.querySelector("button.save");
if (save && window.top === window) {
  save.hidden = false;
  save.addEventListener("click", () => window.print());
}

// Paper is narrower than a screen, and nothing can be opened on it.
const PAPER_WIDTH = 680;
const HALF = { width: 328, height: 255 }; // of charts beside text, so that the first page is a single one
const folded = document.querySelectorAll("details:not([open])");
addEventListener("beforeprint", () => {
  while (charts.length) draw(charts.shift());
  document.querySelectorAll(".js-plotly-plot").forEach((chart) => {
    Plotly.relayout(chart, chart.closest(".pair") ? HALF : { width: PAPER_WIDTH });
  });
  folded.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => {
  folded.forEach((details) => { details.open = false; });
  document.querySelectorAll(".js-plotly-plot").forEach((chart) => Plotly.relayout(chart, { width: null, height: null, autosize: true }));
});

// A button of a legend shows or hides its strategy in every chart and legend.
const buttons = [...document.querySelectorAll(".keys button")];
buttons.forEach((button) => {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    buttons.filter((other) => other.dataset.strategy === button.dataset.strategy)
      .forEach((other) => other.setAttribute("aria-pressed", String(shown)));
    document.querySelectorAll(".chart.js-plotly-plot").forEach((chart) => {
      const places = chart.data.flatMap((line, i) => (line.meta === button.dataset.strategy ? [i] : []));
      if (places.length) Plotly.restyle(chart, { visible: shown }, places);
    });
  });
});
