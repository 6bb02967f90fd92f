"""The dashboard's one style sheet: the front end's own colours, light or dark, wide or narrow.

JupyterLab's variables come first, then VS Code's, then what is inherited. Nothing tells a
state by colour alone: each has a sign and a word.
"""

__all__ = ["HIDE_DEAD", "STYLE", "hide_copy"]

STYLE = """
.vq-dash { container-type: inline-size; padding: 4px 2px; font-size: 13px; line-height: 1.45;
  color: var(--jp-ui-font-color1, var(--vscode-foreground, inherit));
  font-family: var(--jp-ui-font-family, var(--vscode-font-family, system-ui, sans-serif)); }
.vq-dash, .vq-dash > * { overflow: visible; max-width: 100%; }
.vq-dash .widget-html-content { line-height: 1.45; font-size: 13px; white-space: normal; }
.vq-dash .widget-html, .vq-dash .widget-html-content { height: auto; width: 100%; margin: 0;
  min-width: 0; overflow-wrap: anywhere; }
.vq-muted, .vq-dash caption { color: var(--jp-ui-font-color2,
  var(--vscode-descriptionForeground, inherit)); }
.vq-top { display: flex; gap: 4px 10px; flex-wrap: wrap; align-items: baseline; }
.vq-chip { border: 1px solid currentColor; border-radius: 10px; padding: 0 9px; font-weight: 600;
  white-space: nowrap; }
.vq-headline { font-size: 17px; font-weight: 600; line-height: 1.35; margin: 3px 0 7px; }
.vq-banner { border: 1px solid var(--jp-border-color1, #999); border-left-width: 5px;
  padding: 5px 10px; margin: 6px 0 2px; background: var(--jp-layout-color2,
  var(--vscode-textBlockQuote-background, transparent)); overflow-wrap: anywhere; }
.vq-error { border-left-color: var(--jp-error-color1, #d55e00); }
.vq-warning { border-left-color: var(--jp-warn-color1, #e69f00); }
.vq-dash table { border-collapse: collapse; width: 100%; font-size: 12px; margin: 0;
  table-layout: auto; color: inherit; background: none; border: 0; }
.vq-dash caption { text-align: left; caption-side: top; padding: 10px 0 2px; font-weight: 600;
  font-size: 12px; }
.vq-dash .vq-part { padding: 10px 0 2px; font-weight: 600; font-size: 12px; margin: 0; }
.vq-dash thead th { font-weight: 600; border-bottom: 1px solid var(--jp-border-color1, #999); }
.vq-dash th, .vq-dash td { text-align: left !important; vertical-align: top;
  padding: 2px 10px 2px 0; background: none; border: 0; }
.vq-dash tbody th { font-weight: 400; }
.vq-dash thead th, .vq-dash tbody th { overflow-wrap: normal; white-space: nowrap; }
.vq-dash .vq-accounts tbody th { white-space: normal; overflow-wrap: anywhere; }
.vq-line { display: -webkit-box; -webkit-line-clamp: 1; -webkit-box-orient: vertical;
  overflow: hidden; word-break: break-all; }
.vq-dash tbody tr { background: none !important;
  border-bottom: 1px solid var(--jp-border-color2, rgba(128, 128, 128, .35)); }
.vq-dash .vq-num { font-variant-numeric: tabular-nums; white-space: nowrap; }
.vq-sign { display: inline-block; border-left: 4px solid; padding-left: 5px; white-space: nowrap;
  line-height: 1.2; }
.vq-word { color: var(--jp-ui-font-color1, var(--vscode-foreground, inherit)); }
.vq-code { font-family: var(--jp-code-font-family, monospace); font-size: 12px; }
.vq-meter { display: inline-block; width: 52px; height: 7px; margin-right: 6px;
  border: 1px solid var(--jp-border-color1, #999); }
.vq-meter > span { display: block; height: 100%; background: #0072b2; }
.vq-columns { display: flex; flex-flow: row wrap; gap: 0 28px; align-items: flex-start; }
.vq-columns > * { min-width: 0; flex: 1 1 100%; }
@container (min-width: 840px) { .vq-columns > .vq-left { flex: 1 1 0; }
  .vq-columns > .vq-right { flex: 0 0 380px; } }
.vq-plots img { display: block; width: 100%; max-width: 460px; height: auto; margin-top: 8px; }
[data-jp-theme-light="false"] .vq-plots img, .vscode-dark .vq-plots img {
  filter: invert(1) hue-rotate(180deg); }
.vq-why { font-size: 12px; margin-top: 3px; }
.vq-note { display: -webkit-box; -webkit-line-clamp: 2; -webkit-box-orient: vertical;
  overflow: hidden; }
@container (max-width: 640px) {
  .vq-table :is(th, td):is(:nth-child(4), :nth-child(5), :nth-child(6)) { display: none; }
  .vq-running :is(th, td):nth-child(5), .vq-doubts :is(th, td):nth-child(2) { display: none; }
  .vq-accounts .vq-meter { display: none; }
  .vq-dash :is(.vq-accounts, .vq-running) td .vq-num, .vq-table .vq-sign { white-space: normal; }
  .vq-dash .vq-table td { min-width: 84px; } }
.vq-dash .vq-row .vq-part { padding: 0; }
.vq-dash .vq-row .widget-label { width: auto; min-width: 0; font-size: 12px; padding: 0;
  margin: 0 5px 0 0; color: inherit; }
.vq-row { display: flex; flex-flow: row wrap; gap: 4px 6px; align-items: center;
  margin: 6px 0 2px; }
.vq-dash .jupyter-button { width: auto; padding: 0 11px; height: 26px; line-height: 24px;
  margin: 0; border: 1px solid var(--jp-border-color1, #999); border-radius: 3px;
  color: var(--jp-ui-font-color1, var(--vscode-foreground, inherit));
  background: var(--jp-layout-color1, transparent); box-shadow: none; font-size: 12px;
  white-space: normal; min-width: 0; max-width: 100%; }
.vq-dash .jupyter-button:disabled { opacity: .45; }
.vq-dash .jupyter-button:not(:disabled):hover { background: var(--jp-layout-color2, #8883); }
.vq-dash :is(button, select, input):focus-visible {
  outline: 2px solid var(--jp-brand-color1, #0072b2); outline-offset: 1px; }
.vq-dash .jupyter-button.vq-danger { border-color: var(--jp-error-color1, #d55e00);
  border-width: 2px; line-height: 22px; font-weight: 600; }
.vq-dash .vq-confirm { padding: 4px 10px; border: 1px solid var(--jp-error-color1, #d55e00);
  border-left-width: 5px; }
.vq-dash .vq-fit { width: auto; margin: 0; min-width: 0; max-width: 100%; }
[data-jp-theme-light="false"] .vq-dash select { color-scheme: dark; appearance: auto;
  background-image: none; }
.vq-dash .vq-fit > select, .vq-dash .vq-fit > input { font-size: 12px; height: 26px; }
.vq-dash .widget-html.vq-log { max-height: 190px; overflow-y: auto; width: auto;
  border: 1px solid var(--jp-border-color2, rgba(128, 128, 128, .35)); padding: 3px 8px; }
.vq-dash .widget-html.vq-jobs { max-height: 420px; overflow-y: auto; }
.vq-log ol { list-style: none; margin: 0; padding: 0; font-size: 12px; }
.vq-log li { padding: 1px 0; overflow-wrap: anywhere; }
.vq-heard { position: absolute !important; width: 1px; height: 1px; overflow: hidden;
  clip-path: inset(50%); white-space: nowrap; }
"""

# In a saved notebook on a new kernel JupyterLab writes an error where the live dashboard was:
# an output of widgets without anything in it but text. Below it stands the copy.
HIDE_DEAD = (
    ".jp-OutputArea:has(> .jp-OutputArea-child .vq-copy) > .jp-OutputArea-child"
    " > .jp-OutputArea-output.jupyter-widgets:not(:has(*)) { display: none; }"
)


def hide_copy(name: str) -> str:
    """Hides the copy for the saved notebook while the live dashboard stands above it.

    Only in JupyterLab: other front ends may not show live updates, and there the copy is
    what people see.
    """
    return f".jp-OutputArea .{name} {{ display: none; }}"
