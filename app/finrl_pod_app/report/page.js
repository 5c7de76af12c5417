// A button of the legend shows or hides its strategy in every chart.
document.querySelectorAll(".keys button").forEach((button) => {
  button.addEventListener("click", () => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    document.querySelectorAll(".chart .js-plotly-plot").forEach((chart) => {
      const places = chart.data.flatMap((line, i) => (line.meta === button.dataset.strategy ? [i] : []));
      if (places.length) Plotly.restyle(chart, { visible: shown }, places);
    });
  });
});
