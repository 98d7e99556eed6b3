package story

// judgeGaps says what the records do not have. Grounds: the numbers of their events, and the checksums of their pages.
func (s *Story) judgeGaps() {
	for _, t := range s.tapes {
		at := t.clock.at(t.record.About.BeganBoot)
		switch {
		case len(t.parties) == 0:
			s.find(t.record.About.Began, Gap, "", "", "%s: the record does not say whose events it has, so that none is told.", t.name)
		case t.leftOut > 0:
			s.find(at, Gap, "", "", "%s: there was no room for %s of this process. What they did is not told.", t.name, count(t.leftOut, "client"))
		}
		switch {
		case t.record.BadPages > 0:
			s.find(t.end(), Gap, "", "", "%s: %s of the record are damaged.", t.name, count(t.record.BadPages, "page"))
		case t.record.Missing() > 0:
			s.find(t.end(), Gap, "", "", "%s: %s in the middle of the record are missing.", t.name, count(int(t.record.Missing()), "event"))
		}
		if t.untold > 0 {
			s.find(at, Gap, "", "", "%s: there is too much in this record for one story. It is told from %s on.", t.name, t.clock.at(t.fromBoot).Format(clockFormat))
		}
	}
	for _, p := range s.Parties {
		if p.dropped > 0 {
			s.find(p.droppedFrom, Gap, "", "", "%s: from here on %s of %s are missing in the record, as it was written too slowly.", p.Source, count(int(min(p.dropped, 1<<30)), "event"), p.Name)
		}
	}
	if s.spent > maxCompared {
		s.find(s.start(), Gap, "", "", "There is too much in these records to compare all of it. What two had at once, and why, may be missing here. Give fewer records.")
	}
}
