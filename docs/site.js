// Browsers give a page that was opened from the disk no index to search in.
if (location.protocol === "file:") {
  for (const field of document.querySelectorAll("[data-md-component=search-query]")) {
    field.placeholder = "To search: .venv/bin/mkdocs serve";
    field.disabled = true;
  }
}
