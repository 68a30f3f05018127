"""`kdtree report`: whether what validate measured justifies `on`, as text, JSON and a page of HTML.

The standard library only. docs/operating/verdict.md says what each criterion asks and why.
"""
