"""KV sanitizer, a debug option (`kv_cache.sanitize`): finds reads and writes of the KV cache that the attention contract forbids."""
