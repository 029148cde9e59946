def page_blocks(told): return []
def write_page(store, told): return ""
