// A page is one step for Back, and Back shows it as it was left.
// Streamlit writes the parameters of the page before (without its fields) as a step of its own when another page opens.
if (!window.pageHistory) {
  window.pageHistory = true;
  const push = history.pushState.bind(history);
  const replace = history.replaceState.bind(history);
  let left = null; // address before the server changed the parameters
  history.replaceState = (...entry) => {
    left = null;
    replace(...entry);
  };
  history.pushState = (state, title, url) => {
    if (new URL(url, location.href).pathname === location.pathname) {
      left = location.href;
      replace(state, title, url);
      return;
    }
    if (left !== null) replace(state, title, left);
    left = null;
    push(state, title, url);
  };
}
