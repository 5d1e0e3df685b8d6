"""Tools that come with Treadle: files, code, tables, the web.

Choosing among them by name is in ``choice``; what a tool is to an agent is said in ``treadle.agents.tool``.
"""
