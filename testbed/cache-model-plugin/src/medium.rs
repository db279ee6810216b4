//! The modelled memory: images, shadows and counters in mapped files.

use std::{fs::File, path::Path, sync::atomic::Ordering};

use cache_model::{COUNTERS_BYTES, Counter, CutAfter, Domain, LINE_BYTES, Memory, Options, RangeOptions, data_extents};

use crate::mapping::{Words, open};

/// One range of memory with its medium.
#[derive(Debug)]
struct Range {
    physical: u64,
    length: u64,
    live_file: File,
    live: Words,
    shadow_file: File,
    shadow: Words,
}

/// All of them, and the count of what happened.
#[derive(Debug)]
pub(crate) struct Medium {
    ranges: Vec<Range>,
    counts: Counts,
    domain: Domain,
    /// The counter that ends the machine, and at which value.
    cut: Option<(Counter, u64)>,
}

#[derive(Debug)]
enum Counts {
    File(Words),
    Here([u64; Counter::ALL.len()]),
}

impl Medium {
    pub(crate) fn open(options: &Options) -> Result<Medium, String> {
        let ranges = options.ranges.iter().map(Range::open).collect::<Result<_, _>>()?;
        let counts = match &options.counters {
            Some(path) => Counts::File(counters_file(path)?),
            None => Counts::Here([0; Counter::ALL.len()]),
        };
        let mut medium = Medium { ranges, counts, domain: options.domain, cut: None };
        if options.arm.is_none() {
            medium.arm(options.cut_after);
        }
        Ok(medium)
    }

    /// Starts to count towards the cut.
    pub(crate) fn arm(&mut self, cut_after: Option<CutAfter>) {
        self.cut = cut_after.and_then(CutAfter::counter).map(|(counter, more)| (counter, self.get(counter) + more));
    }

    fn get(&self, counter: Counter) -> u64 {
        match &self.counts {
            Counts::File(words) => u64::from_le(words.word(counter as usize).load(Ordering::Relaxed)),
            Counts::Here(counts) => counts[counter as usize],
        }
    }

    fn range(&self, line: u64) -> Option<&Range> {
        self.ranges.iter().find(|range| line.wrapping_sub(range.physical) < range.length)
    }
}

impl Memory for Medium {
    fn contains(&self, line: u64) -> bool {
        self.range(line).is_some()
    }

    fn live(&self, line: u64) -> [u8; 64] {
        self.range(line).map_or([0; 64], |range| range.live.line(line - range.physical))
    }

    fn persist(&mut self, line: u64, bytes: &[u8; 64], mask: u64) {
        if self.domain == Domain::Eadr {
            return;
        }
        if let Some(range) = self.range(line) {
            range.shadow.replace(line - range.physical, bytes, mask);
        }
    }

    fn lines(&self) -> Vec<u64> {
        self.ranges.iter().flat_map(Range::differing).collect()
    }

    fn count(&mut self, counter: Counter) {
        let now = self.get(counter) + 1;
        match &mut self.counts {
            Counts::File(words) => words.word(counter as usize).store(now.to_le(), Ordering::Relaxed),
            Counts::Here(counts) => counts[counter as usize] = now,
        }
        if self.cut.is_some_and(|(cut, at)| cut == counter && now >= at) {
            crate::cut();
        }
    }
}

impl Range {
    fn open(options: &RangeOptions) -> Result<Range, String> {
        let (live_file, shadow_file) = (open(&options.image)?, open(&options.shadow)?);
        Ok(Range {
            physical: options.physical,
            length: options.length,
            live: Words::map(&options.image, &live_file, options.length)?,
            live_file,
            shadow: Words::map(&options.shadow, &shadow_file, options.length)?,
            shadow_file,
        })
    }

    /// The lines that differ between live memory and medium. A file whose holes cannot be found is compared whole.
    fn differing(&self) -> Vec<u64> {
        let extents = |file| data_extents(file, self.length).unwrap_or_else(|_| vec![(0, self.length)]);
        let mut extents = [extents(&self.live_file), extents(&self.shadow_file)].concat();
        extents.sort_unstable();
        let mut lines = Vec::new();
        let mut done = 0;
        for (start, end) in extents {
            for byte in (start.max(done)..end).step_by(LINE_BYTES as usize) {
                if self.live.line(byte) != self.shadow.line(byte) {
                    lines.push(self.physical + byte);
                }
            }
            done = done.max(end);
        }
        lines
    }
}

/// Makes the file of counters anew, all 0.
fn counters_file(path: &Path) -> Result<Words, String> {
    let made = File::create(path).and_then(|file| file.set_len(COUNTERS_BYTES as u64));
    made.map_err(|error| format!("creating the counters {}: {error}", path.display()))?;
    Words::map(path, &open(path)?, COUNTERS_BYTES as u64)
}
