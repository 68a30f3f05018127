"""The page's style: by day and by night, on a phone, on paper."""

STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --soft: #57606a; --page: #fff; --card: #f6f8fa; --rule: #d0d7de;
  --k0: #9a3412; --k1: #1d4ed8; --k2: #166534; --good: #166534; --wait: #854d0e; --bad: #b91c1c; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --soft: #9da7b1; --page: #0d1117; --card: #161b22;
  --rule: #3d444d; --k0: #fdba74; --k1: #93c5fd; --k2: #86efac; --good: #86efac; --wait: #fcd34d; --bad: #fca5a5; } }
@media print { :root { color-scheme: light; --text: #000; --soft: #333; --page: #fff; --card: #fff; --rule: #999;
  --k0: #9a3412; --k1: #1d4ed8; --k2: #166534; --good: #166534; --wait: #854d0e; --bad: #b91c1c; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; color: var(--text); background: var(--page);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1rem; font-weight: 600; color: var(--soft); margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
.verdict { border: 1px solid var(--rule); border-left: .5rem solid; border-radius: .5rem; padding: 1rem;
  background: var(--card); }
.verdict p { margin: .25rem 0; color: var(--text); }
.verdict .word { font-size: 1.6rem; line-height: 1.25; font-weight: 700; margin: 0; color: inherit; }
.justified { border-left-color: var(--good); color: var(--good); }
.not-yet { border-left-color: var(--wait); color: var(--wait); }
.no { border-left-color: var(--bad); color: var(--bad); }
.soft { color: var(--soft); } p.soft { margin: 0 0 .5rem; font-size: .92rem; }
ul { padding: 0; list-style: none; margin: 0; }
.plain { padding-left: 1.2rem; list-style: disc; }
.criteria { display: grid; gap: .5rem; grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr)); }
.criteria li { border: 1px solid var(--rule); border-radius: .5rem; padding: .6rem .75rem; background: var(--card); }
.criteria li p { margin: .15rem 0 0; font-size: .92rem; }
.state { font-weight: 700; }
.met .state { color: var(--good); } .missing .state { color: var(--wait); } .failed .state { color: var(--bad); }
.plots { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); }
figure { margin: 0; border: 1px solid var(--rule); border-radius: .5rem; padding: .75rem; min-width: 0; }
figcaption, .legend { font-size: .85rem; color: var(--soft); }
.legend { display: flex; flex-wrap: wrap; gap: 0 1rem; }
.key { width: 26px; height: 14px; vertical-align: -2px; }
.chart { display: block; width: 100%; height: auto; font-size: 12px; }
.chart text { fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: .5; }
.axis { stroke: var(--soft); stroke-width: 1; fill: none; }
.reference { stroke: var(--text); stroke-width: 1.2; }
.r0 { stroke-dasharray: 7 3; } .r1 { stroke-dasharray: 2 3; } .r2 { stroke-dasharray: 7 3 2 3; }
.line { fill: none; stroke-width: 1.5; }
.line.k0 { stroke: var(--k0); } .line.k1 { stroke: var(--k1); stroke-dasharray: 5 3; } .line.k2 { stroke: var(--k2); }
.point.k0 { fill: var(--k0); } .point.k1 { fill: var(--page); stroke: var(--k1); stroke-width: 1.5; }
.point.k2 { fill: var(--k2); }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .75rem; text-align: right; border-top: 1px solid var(--rule); white-space: nowrap; }
tbody th { position: sticky; left: 0; background: var(--page); }
thead th { border-top: 0; }
th:first-child, td:first-child { text-align: left; }
td.text, th.text { text-align: left; white-space: normal; min-width: 16rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; }
@media (max-width: 30rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media print { body { font-size: 10pt; padding: 0; } figure, li, tr { break-inside: avoid; }
  .plots, .criteria { grid-template-columns: 1fr 1fr; } .scroll { overflow: visible; } td, th { white-space: normal; } }
"""
