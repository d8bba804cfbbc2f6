//! Builds requests in one of three ways: from the target's path and a key, by the caller's
//! function, or by a script.

use crate::keys::{KeyNumbers, mix};
use crate::plan::{KEY, Plan, Requests, Target};
use crate::script::{self, Script};
use crate::values::Values;

/// Method of a request. Latencies are recorded per method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// A `GET` request.
    Get,
    /// A `PUT` request.
    Put,
    /// A `DELETE` request.
    Delete,
    /// Any other method.
    Other,
}

impl Method {
    /// All methods, in order.
    pub const ALL: [Self; 4] = [Self::Get, Self::Put, Self::Delete, Self::Other];

    /// Returns the method's name, or `other` for a method without its own variant.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Other => "other",
        }
    }
}

impl Method {
    /// Returns the method of an encoded request.
    fn of(request: &[u8]) -> Self {
        match request.split(|&byte| byte == b' ').next() {
            Some(b"GET") => Self::Get,
            Some(b"PUT") => Self::Put,
            Some(b"DELETE") => Self::Delete,
            _ => Self::Other,
        }
    }
}

/// Properties of a request that are needed when its answer arrives.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestInfo {
    pub(crate) method: Method,
    /// Number of the request's key.
    pub(crate) key: u64,
    /// Position of a `PUT` among the thread's writes: see [`crate::keys::Key::order`].
    pub(crate) order: u64,
}

/// Builds the requests of one thread.
pub(crate) struct RequestBuilder<'a> {
    plan: &'a Plan,
    numbers: KeyNumbers,
    values: Values,
    script: Option<&'a mut Script>,
    /// Method of the script's last request.
    method: Method,
    /// Request heads by target, then by method.
    heads: Vec<[Head; 3]>,
}

/// The constant parts of a request: up to the key, and after it.
struct Head {
    start: Vec<u8>,
    /// `None` if no key follows.
    end: Option<Vec<u8>>,
}

impl Head {
    fn new(plan: &Plan, target: &Target, method: Method) -> Self {
        let method_name = method.name();
        let (start, end) = match target.path.split_once(KEY) {
            Some((start, end)) => (start, Some(end)),
            None => (target.path.as_str(), None),
        };
        let mut rest = format!("{} HTTP/1.1\r\n", end.unwrap_or(""));
        let own_host = |line: &String| line.as_bytes()[..5].eq_ignore_ascii_case(b"host:");
        if !plan.headers.iter().filter(|line| line.len() >= 5).any(own_host) {
            rest += &format!("Host: {}\r\n", target.name);
        }
        for line in &plan.headers {
            rest += &format!("{line}\r\n");
        }
        if method == Method::Put {
            rest += &format!("Content-Length: {}\r\n", plan.value_len);
        }
        rest += "\r\n";
        let mut start = format!("{method_name} {start}").into_bytes();
        if end.is_none() {
            start.extend_from_slice(rest.as_bytes());
        }
        Self { start, end: end.map(|_| rest.into_bytes()) }
    }
}

impl<'a> RequestBuilder<'a> {
    /// Creates the builder of one thread of the plan.
    pub(crate) fn new(plan: &'a Plan, worker: usize, script: Option<&'a mut Script>) -> Self {
        let head = |target| {
            [Method::Get, Method::Put, Method::Delete].map(|method| Head::new(plan, target, method))
        };
        Self {
            plan,
            numbers: KeyNumbers::new(&plan.keys, worker, plan.workers()),
            values: Values::new(plan.seed, plan.value_len),
            script,
            method: Method::Other,
            heads: plan.targets.iter().map(head).collect(),
        }
    }

    /// Returns the random numbers of a request. The numbers follow from the seed and the request's
    /// number alone, so that every thread would build the same request.
    fn random(&self, number: u64) -> fastrand::Rng {
        fastrand::Rng::with_seed(mix(self.plan.seed, number))
    }

    /// Returns the method that the request with this number would have.
    pub(crate) fn method_of(&self, number: u64) -> Method {
        if self.script.is_some() {
            // A script's method is unknown until the script runs.
            return self.method;
        }
        self.method(&mut self.random(number))
    }

    /// Returns the thread's script, if there is one.
    pub(crate) fn script(&mut self) -> Option<&mut Script> {
        self.script.as_deref_mut()
    }

    /// Writes the request with this number into `out`, which contains the connection's last
    /// request.
    pub(crate) fn make(
        &mut self,
        number: u64,
        target: usize,
        out: &mut Vec<u8>,
    ) -> Result<RequestInfo, script::Error> {
        if let Some(script) = &mut self.script {
            if out.is_empty() || !script.is_fixed() {
                out.clear();
                script.select_server(target)?;
                script.request(out)?;
                self.method = Method::of(out);
            }
            return Ok(RequestInfo { method: self.method, key: 0, order: 0 });
        }
        out.clear();
        Ok(self.make_for_key(number, target, out))
    }

    fn make_for_key(&mut self, number: u64, target: usize, out: &mut Vec<u8>) -> RequestInfo {
        let random = &mut self.random(number);
        let method = self.method(random);
        let key = self.numbers.next(method == Method::Put, number, random);
        let info = RequestInfo { method, key: key.number, order: key.order };
        if let Requests::Custom(write) = self.plan.requests {
            write(method == Method::Put, key.number, out);
            return info;
        }
        let head = &self.heads[target][method as usize];
        out.extend_from_slice(&head.start);
        if let Some(end) = &head.end {
            self.plan.keys.write(key.number, out);
            out.extend_from_slice(end);
        }
        if method == Method::Put {
            self.values.write(key.number, out);
        }
        info
    }

    fn method(&self, random: &mut fastrand::Rng) -> Method {
        let (put, delete) = (self.plan.put_percent, self.plan.delete_percent);
        match (put, delete) {
            (0, 0) => Method::Get,
            (100, _) => Method::Put,
            _ => match random.u8(..100) {
                n if n < put => Method::Put,
                n if n < put + delete => Method::Delete,
                _ => Method::Get,
            },
        }
    }

    /// Marks a request as answered, or as given up.
    pub(crate) fn mark_answered(&mut self, info: &RequestInfo) {
        if info.method == Method::Put {
            self.numbers.mark_answered(info.order);
        }
    }

    /// Returns true if `body` is the value that the plan writes under the request's key.
    pub(crate) fn is_value(&self, info: &RequestInfo, body: &[u8]) -> bool {
        self.values.is(info.key, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(plan: &Plan, number: u64, target: usize) -> String {
        let mut out = Vec::new();
        RequestBuilder::new(plan, 0, None).make(number, target, &mut out).unwrap();
        String::from_utf8_lossy(&out).into_owned()
    }

    fn plan(path: &str) -> Plan {
        let mut plan = Plan::new(Target::new("127.0.0.1:80".parse().unwrap(), path));
        plan.keys.order = crate::KeyOrder::Sequential;
        plan
    }

    #[test]
    fn the_key_replaces_the_placeholder_in_the_path() {
        let plan = plan("/a/{key}/b?c=d");
        let expected = "GET /a/k000000000000007/b?c=d HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n";
        assert_eq!(text(&plan, 7, 0), expected);
    }

    #[test]
    fn a_path_without_a_placeholder_gives_equal_requests() {
        let plan = Plan { value_len: 0, put_percent: 100, ..plan("/fixed") };
        let expected = "PUT /fixed HTTP/1.1\r\nHost: 127.0.0.1:80\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(text(&plan, 1, 0), expected);
        assert_eq!(text(&plan, 2, 0), expected);
    }

    #[test]
    fn headers_are_added_and_a_host_header_replaces_the_default() {
        let headers = vec!["HOST: other".to_owned(), "X: y".to_owned()];
        let plan = Plan { headers, delete_percent: 100, ..plan("/{key}") };
        let expected = "DELETE /k000000000000000 HTTP/1.1\r\nHOST: other\r\nX: y\r\n\r\n";
        assert_eq!(text(&plan, 0, 0), expected);
    }

    #[test]
    fn a_request_follows_from_its_number_however_many_threads_there_are() {
        let mut plan = Plan { put_percent: 30, delete_percent: 20, ..plan("/{key}") };
        plan.keys.order = crate::KeyOrder::Zipf;
        let one: Vec<String> = (0..100).map(|number| text(&plan, number, 0)).collect();
        plan.threads = 4;
        let four: Vec<String> = (0..100).map(|number| text(&plan, number, 0)).collect();
        assert_eq!(one, four);
        let puts = one.iter().filter(|text| text.starts_with("PUT")).count();
        let deletes = one.iter().filter(|text| text.starts_with("DELETE")).count();
        assert!((15..50).contains(&puts) && (8..35).contains(&deletes), "{puts} {deletes}");
    }
}
