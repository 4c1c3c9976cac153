"""Built-in components, registered like a stranger's: one light class per component, named by the entry points of this distribution."""
