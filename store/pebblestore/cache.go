package pebblestore

// cache keeps what the committer has decided or looked up. It is exact for the keys that it has; the
// database has the rest. It grows beyond its bound only until the next shrink, because what a group
// changed must not be looked up in the database before the group is applied.
type cache[K comparable, V any] struct {
	m     map[K]V
	bound int
}

func (c *cache[K, V]) init(bound int) {
	c.m, c.bound = map[K]V{}, bound
}

func (c *cache[K, V]) get(k K) (V, bool) { v, ok := c.m[k]; return v, ok }
func (c *cache[K, V]) put(k K, v V)      { c.m[k] = v }

// shrink drops entries, no matter which, until three quarters of the bound are left.
func (c *cache[K, V]) shrink() {
	if len(c.m) <= c.bound {
		return
	}
	for k := range c.m {
		if len(c.m) <= c.bound*3/4 {
			return
		}
		delete(c.m, k)
	}
}
