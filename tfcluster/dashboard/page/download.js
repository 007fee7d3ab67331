// Files that the browser saves.

export function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "_");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Save rows of values, the first of which are the names of the columns.
export function saveCsv(name, rows) {
  const quote = (value) => (typeof value === "string" ? `"${value.replaceAll('"', '""')}"` : String(value ?? ""));
  const lines = rows.map((row) => `${row.map(quote).join(",")}\r\n`);
  save(`${name}.csv`, new Blob(lines, { type: "text/csv" }));
}
