package deadletter

// BoundChunks makes redrives go in small steps.
func (s *Service) BoundChunks(n int) { s.maxChunk = n }
